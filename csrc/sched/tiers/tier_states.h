// KV offload: sends snapshots of recurrent state to the tiers that hold the blocks of their tokens.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "base/ids.h"
#include "kv/block_manager.h"
#include "kv/tier.h"
#include "sched/types/plan.h"

namespace ballast {

// A block of the cache as it was last sent to a tier.
struct SentBlock {
  uint64_t stamp = 0;  // of the cache's block
  BlockId tier_block = kNullBlock;
  uint64_t tier_stamp = 0;
};

// A tier takes every snapshot, or only those at the ends of conversations at rest, which nothing has
// continued: the server has been idle for a while, or the ends of later conversations have taken one of
// kSlotsPerLater slots. So the tier has a snapshot before its slot is needed.
class TierStates {
 public:
  // `sent`: by tier and block of the cache. All must outlive this.
  TierStates(std::vector<Tier>& tiers, const std::vector<std::vector<SentBlock>>& sent, BlockManager& blocks)
      : tiers_(tiers), sent_(sent), blocks_(blocks), unsent_(tiers.size()) {}

  // A block got a snapshot.
  void note_snapshot(BlockId block);
  // The snapshot of a block is kept for something else, or is used again: so are the tiers' copies.
  void note_use(BlockId block);
  // As StateSlots does, in all tiers.
  void change_uses(int64_t request, const std::function<void(SnapshotUse&)>& change);
  // A request ended; its conversation may continue after one of these blocks, which have snapshots.
  void note_end(const std::vector<BlockId>& blocks);
  // A request begins after a block.
  void note_begin(BlockId block);
  // All conversations are at rest.
  void rest();
  // Appends the stores for which tiers have room.
  void send(std::vector<Transfer>& transfers);

  int64_t num_unsent() const;

 private:
  // By default half of the slots are for snapshots, and the requests that run next take new ones.
  static constexpr int32_t kSlotsPerLater = 4;

  struct Snapshot {
    BlockId block;
    uint64_t stamp;
  };

  // Snapshots that may wait for a tier: all of the cache, and some whose slots are taken again.
  size_t most_unsent() const {
    return std::max<size_t>(64, static_cast<size_t>(blocks_.states().num_slots()));
  }
  void add(size_t tier, const Snapshot& snapshot);
  void add_rested(const std::vector<Snapshot>& conversation);
  // Whether a tier has a block of the cache, as `sent_` says.
  bool is_sent(size_t tier, BlockId block) const;
  bool send_one(size_t tier, const Snapshot& snapshot, std::vector<Transfer>& transfers);

  std::vector<Tier>& tiers_;
  const std::vector<std::vector<SentBlock>>& sent_;
  BlockManager& blocks_;
  std::vector<std::deque<Snapshot>> unsent_;   // by tier, the oldest first
  std::deque<std::vector<Snapshot>> resting_;  // conversations that have ended, the oldest first
};

}  // namespace ballast
