// The slots of recurrent state: of running sequences, and of snapshots, from which later sequences can begin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "kv/snapshot_use.h"

namespace ballast {

enum class StateSlot : int32_t {};
// Reading it gives zeros, the state before a sequence's first token; what is written to it is lost.
inline constexpr StateSlot kNullSlot{0};

constexpr size_t index_of(StateSlot slot) { return static_cast<size_t>(slot); }

struct StateConfig {
  int32_t num_slots = 0;  // usable slots, in addition to the null slot; 0: the model has no recurrent state
};

// Distance of the snapshots that are kept within a long prompt, in tokens.
inline constexpr int32_t kSnapshotDistance = 8192;
// Slots with which running requests never lack one: each has the state after its last token, and an earlier
// one at the end of a block.
constexpr int32_t least_state_slots(int32_t max_batch_size) { return 2 * max_batch_size; }
// The usual number of snapshots: as many as these slots, `least`, or one for each kSnapshotDistance tokens of
// the cache, the largest of the three.
int64_t usual_snapshots(int64_t capacity_tokens, int64_t slots_of_requests, int64_t least);

// A slot is free, or held by requests, or a snapshot, or both of the last two. A snapshot is the state after
// the tokens of a block of the cache and of all blocks before it, and belongs to this block. Snapshots that
// no request holds are evicted when slots are needed: first those that go first, then the others, each in the
// order of last use. The contents of a slot that has more than one holder, or is a snapshot, never change.
//
// Without slots every call is without effect, and every block has its state.
class StateSlots {
 public:
  StateSlots(int32_t num_cache_blocks, const StateConfig& config);

  bool is_used() const { return config_.num_slots > 0; }
  int32_t num_slots() const { return config_.num_slots; }
  int32_t num_held() const { return num_held_; }
  int32_t num_snapshots() const { return num_snapshots_; }
  // Total snapshots whose slots were needed.
  int64_t num_evicted() const { return num_evicted_; }

  // The most leading blocks of a sequence after which a request can begin: there is a snapshot, or none of
  // them is left.
  size_t num_usable(const std::vector<BlockId>& blocks) const;
  // The snapshot of a block, or the null slot.
  StateSlot of(BlockId block) const { return slots_.empty() ? kNullSlot : snapshots_[index_of(block)]; }

  // Acquires a slot, with one holder. It may evict a snapshot; a slot must be left that no request holds.
  StateSlot take();
  void hold(StateSlot slot);
  void release(StateSlot slot);
  // Whether the holder may write to it: there is no other one, and it is no snapshot.
  bool is_own(StateSlot slot) const;
  bool is_snapshot(StateSlot slot) const {
    return slot != kNullSlot && slots_[index_of(slot)].block != kNullBlock;
  }
  // The block whose snapshot it is, or the null block.
  BlockId block_of(StateSlot slot) const {
    return slots_.empty() ? kNullBlock : slots_[index_of(slot)].block;
  }
  // A held slot becomes the snapshot of a block; if the block has one, see use(). `num_tokens`: that precede
  // it.
  void attach(BlockId block, StateSlot slot, const SnapshotUse& use, int32_t num_tokens = 0);
  // The numbers of tokens before at most `most` snapshots, those used last first.
  std::vector<int32_t> positions(size_t most) const;
  // If a block has a snapshot, it counts as used now; see after_use().
  void use(BlockId block, const SnapshotUse& use);
  const SnapshotUse& use_of(BlockId block) const { return slot(of(block)).use; }
  // The ends of a request that have a snapshot.
  TurnEnds ends_of(int64_t request) const;
  // Changes what the snapshots of a request are kept for.
  void change_uses(int64_t request, const std::function<void(SnapshotUse&)>& change);
  // A free slot becomes the snapshot of a block that has none, at the end of an unknown request.
  void restore(BlockId block, StateSlot slot);
  // The block has no snapshot any more: it is freed, or the snapshot is wrong.
  void drop(BlockId block);

  // `holders`: of each slot.
  void check(const std::vector<int32_t>& holders) const;

 private:
  struct Slot {
    int32_t num_holders = 0;
    BlockId block = kNullBlock;  // whose snapshot it is
    SnapshotUse use;
    int32_t num_tokens = 0;
    int64_t number = 0;  // of its last use
  };
  using EvictionKey = std::pair<bool, int64_t>;  // whether it does not go first, and the number

  Slot& slot(StateSlot id) { return slots_[index_of(id)]; }
  const Slot& slot(StateSlot id) const { return slots_[index_of(id)]; }
  static EvictionKey eviction_key(const Slot& slot) { return {!slot.use.goes_first, slot.number}; }
  std::vector<StateSlot> of_request(int64_t request) const;
  void set_use(StateSlot id, const SnapshotUse& use, int64_t number);
  void detach(StateSlot id);

  StateConfig config_;
  std::vector<Slot> slots_;           // empty without slots
  std::vector<StateSlot> snapshots_;  // by block of the cache
  std::vector<StateSlot> free_;
  std::map<EvictionKey, StateSlot> unheld_;  // snapshots that no request holds, in the order of eviction
  std::set<std::pair<int64_t, StateSlot>> of_requests_;  // snapshots by the request of their use
  int32_t num_held_ = 0;
  int32_t num_snapshots_ = 0;
  int64_t num_uses_ = 0;
  int64_t num_evicted_ = 0;
};

}  // namespace ballast
