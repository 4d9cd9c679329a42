// Decides which snapshots of recurrent state are kept: those at which later requests are expected to begin.
#pragma once

#include <cstdint>
#include <functional>

#include "kv/block_manager.h"
#include "sched/tiers/tier_mirror.h"
#include "sched/types/request.h"

namespace ballast {

// A request that begins at an end of another one continues its conversation. Once it can be repeated from a
// snapshot of its own, the ends of the other one are evicted first, until it is aborted. When it has
// finished, so are its own ends, except those of the kind at which its conversation has continued so far.
// Requests with a new message of the user and steps with the result of a call continue at different ends, so
// one teaches nothing about the other.
//
// The cache and all tiers keep a snapshot for the same use.
class SnapshotUses {
 public:
  // `blocks` and `tiers` must outlive this.
  SnapshotUses(int32_t block_tokens, BlockManager& blocks, TierMirror& tiers)
      : block_tokens_(block_tokens), blocks_(blocks), tiers_(tiers) {}

  // The tokens of full blocks.
  int32_t last_block_end(int32_t num_tokens) const { return num_tokens / block_tokens_ * block_tokens_; }
  // Whether a request asks for a snapshot after num_tokens.
  static bool is_requested(const Request& request, int32_t num_tokens);
  // A request begins at the snapshot of its last block, or with no block. Snapshots that it wants and that
  // are there count as used.
  void begin(Request& request);
  // It begins at a snapshot that it has fetched instead.
  void begin_fetched(Request& request);
  // The use of a snapshot after num_tokens of a request; `ends`: which ends of the reply that is.
  SnapshotUse at(const Request& request, int32_t num_tokens, TurnEnds ends = 0) const;
  // The same of a preempted request, which begins there again.
  SnapshotUse at_preemption(const Request& request, int32_t num_tokens) const;
  // A request has left a snapshot with this use: it can be repeated from there, so while it runs, the ends of
  // the request that it continues go first, too.
  void note_left(const Request& request, const SnapshotUse& use);
  void finish(const Request& request);
  // Its snapshots then belong to the request that it continues, so another one may do so.
  void abort(const Request& request);

 private:
  StateSlots& slots() const { return blocks_.states(); }
  void continue_at(Request& request, const SnapshotUse& found);
  void learn(Request& request, TurnEnds ends);
  void use_wanted(const Request& request);
  void use(BlockId block, const SnapshotUse& use);
  void change(int64_t request, const std::function<void(SnapshotUse&)>& change);

  int32_t block_tokens_;
  ExpectedEnds expected_;  // of the conversation that continued last: new ones are expected to do the same
  BlockManager& blocks_;
  TierMirror& tiers_;
};

}  // namespace ballast
