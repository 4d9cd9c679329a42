#include "sched/tiers/tier_states.h"

#include <algorithm>

namespace ballast {

void TierStates::note_snapshot(BlockId block) {
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (!tiers_[t].takes_rested_states()) add(t, {block, blocks_.stamp(block)});
  }
}

void TierStates::note_use(BlockId block) {
  if (blocks_.states().of(block) == kNullSlot) return;
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (is_sent(t, block))
      tiers_[t].use_state(sent_[t][index_of(block)].tier_block, blocks_.states().use_of(block));
  }
}

void TierStates::change_uses(int64_t request, const std::function<void(SnapshotUse&)>& change) {
  for (Tier& tier : tiers_) tier.change_uses(request, change);
}

void TierStates::note_end(const std::vector<BlockId>& blocks) {
  const auto takes = [](const Tier& tier) { return tier.takes_rested_states(); };
  if (blocks.empty() || std::none_of(tiers_.begin(), tiers_.end(), takes)) return;
  std::vector<Snapshot> conversation;
  for (const BlockId block : blocks) conversation.push_back({block, blocks_.stamp(block)});
  resting_.push_back(std::move(conversation));
  const int32_t most = std::max(1, blocks_.states().num_slots() / kSlotsPerLater);
  size_t num_at_rest = resting_.size();
  for (int32_t num_later = 0; num_at_rest > 0 && num_later < most;) {
    num_later += static_cast<int32_t>(resting_[--num_at_rest].size());
  }
  for (; num_at_rest > 0; --num_at_rest) {
    add_rested(resting_.front());
    resting_.pop_front();
  }
}

void TierStates::note_begin(BlockId block) {
  const auto continues = [&](const std::vector<Snapshot>& conversation) {
    return std::any_of(conversation.begin(), conversation.end(), [&](const Snapshot& snapshot) {
      return snapshot.block == block && snapshot.stamp == blocks_.stamp(block);
    });
  };
  resting_.erase(std::remove_if(resting_.begin(), resting_.end(), continues), resting_.end());
}

void TierStates::rest() {
  for (; !resting_.empty(); resting_.pop_front()) add_rested(resting_.front());
}

void TierStates::add_rested(const std::vector<Snapshot>& conversation) {
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (!tiers_[t].takes_rested_states()) continue;
    for (const Snapshot& snapshot : conversation) add(t, snapshot);
  }
}

void TierStates::add(size_t tier, const Snapshot& snapshot) {
  if (!tiers_[tier].takes_states()) return;
  unsent_[tier].push_back(snapshot);
  if (unsent_[tier].size() > most_unsent()) unsent_[tier].pop_front();
}

void TierStates::send(std::vector<Transfer>& transfers) {
  for (size_t t = 0; t < tiers_.size(); ++t) {
    std::deque<Snapshot> waiting;
    for (const Snapshot& snapshot : unsent_[t]) {
      if (!send_one(t, snapshot, transfers)) waiting.push_back(snapshot);
    }
    unsent_[t] = std::move(waiting);
  }
}

bool TierStates::is_sent(size_t tier, BlockId block) const {
  const SentBlock& sent = sent_[tier][index_of(block)];
  return sent.stamp == blocks_.stamp(block) && tiers_[tier].stamp(sent.tier_block) == sent.tier_stamp;
}

// Returns false if the snapshot can be sent later.
bool TierStates::send_one(size_t tier, const Snapshot& snapshot, std::vector<Transfer>& transfers) {
  Tier& to = tiers_[tier];
  const BlockId block = snapshot.block;
  const StateSlot slot = blocks_.states().of(block);
  if (slot == kNullSlot || blocks_.stamp(block) != snapshot.stamp || blocks_.is_hidden(block)) return true;
  if (!is_sent(tier, block)) return !to.is_busy();
  const BlockId tier_block = sent_[tier][index_of(block)].tier_block;
  if (to.has_or_gets_state(tier_block)) return true;
  const StateSlot place = to.send_state(tier_block, blocks_.states().use_of(block));
  if (place == kNullSlot) return !to.is_busy_with_states();
  Transfer store{Move::kStoreState, static_cast<int32_t>(tier), tier_block};
  store.tier_state = place;
  store.state = slot;
  transfers.push_back(std::move(store));
  return true;
}

int64_t TierStates::num_unsent() const {
  size_t num_unsent = 0;
  for (const std::deque<Snapshot>& of_tier : unsent_) num_unsent += of_tier.size();
  return static_cast<int64_t>(num_unsent);
}

}  // namespace ballast
