// The recurrent state of requests: which slots the row of a step reads and writes, and what becomes a
// snapshot.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kv/block_manager.h"
#include "sched/snapshot_uses.h"
#include "sched/tiers/tier_mirror.h"
#include "sched/types/request.h"

namespace ballast {

// A running request holds the state after its computed tokens (`live`), and the one at the end of the last
// block that they fill (`kept`), if a step has left it. A step reads the one slot and writes the other: where
// the old state is to stay, no copy is needed.
//
// Snapshots are taken of the end of a prompt, where the request wants them, of the end of what other requests
// have in common with it, at regular distances in long prompts, and of the last full block when a request
// ends or is preempted. No step is divided for them: the kernels write them while they compute the tokens.
class RequestStates {
 public:
  // `blocks` and `tiers` must outlive this.
  RequestStates(int32_t block_tokens, int32_t max_batch_size, BlockManager& blocks, TierMirror& tiers);

  // Throws std::invalid_argument unless `snapshots_at` are ascending numbers of the prompt's tokens.
  static void check_wanted(const std::string& name, const std::vector<int32_t>& snapshots_at,
                           int64_t prompt_tokens);
  // See AddOptions.
  void set_wanted(Request& request, const std::vector<int32_t>& snapshots_at,
                  const std::vector<int32_t>& snapshot_before) const;

  // Begins with the snapshot of the last block of the match, which is published. Those that the request wants
  // and that are there count as used.
  void begin(Request& request);
  // Takes the slot of the state after the step's tokens. A running request never lacks it.
  void plan(Request& request);
  // Takes those of the states in between that are worth it, as far as the slots of running requests remain.
  // After plan() of all requests of the step. `num_without_slot`: running requests that fetch or wait for a
  // slot of the batch afterwards.
  void plan_saves(Request& request, int32_t num_without_slot);
  // The step is computed, and its full blocks are published: what it left becomes live, kept or a snapshot.
  void commit(Request& request);
  // All three before the blocks are released. If the request is preempted or has finished, the kept state
  // becomes a snapshot.
  void preempt(Request& request);
  void abort(Request& request);
  void finish(Request& request);

  // How many times a request has begun at a snapshot, of the cache or of a tier.
  int64_t num_hits() const { return num_hits_; }

  // Whether slots are left for one more request that fetches.
  bool may_fetch(int32_t num_without_slot) const {
    return !slots().is_used() || num_saves_ + 2 * (num_without_slot + 1) <= most_saves_;
  }
  // Takes the slot of a state that is to be fetched. After begin().
  void begin_fetch(Request& request);
  // The fetch is over, and the fetched blocks are published. If it is complete, the request continues with
  // the fetched state, which becomes a snapshot.
  void end_fetch(Request& request, bool is_complete);

 private:
  StateSlots& slots() const { return blocks_.states(); }
  bool is_wanted(const Request& request, int32_t num_tokens) const;
  bool is_on_grid(const Request& request, int32_t num_tokens) const;
  void keep_before_opener(Request& request);
  // A state of the request becomes a snapshot. `ends`: which ends of the reply it is.
  void leave(Request& request, int32_t num_tokens, StateSlot slot, TurnEnds ends = 0);
  // Returns false if the cache does not know the block.
  bool attach(Request& request, int32_t num_tokens, StateSlot slot, const SnapshotUse& use);
  void release(Request& request);
  int32_t last_block_end(int32_t num_tokens) const { return uses_.last_block_end(num_tokens); }

  int32_t block_tokens_;
  int32_t most_saves_;  // slots that are not reserved for running requests
  int32_t num_saves_ = 0;
  int64_t num_hits_ = 0;
  BlockManager& blocks_;
  TierMirror& tiers_;
  SnapshotUses uses_;
};

}  // namespace ballast
