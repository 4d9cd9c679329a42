#include "kv/state_slots.h"

#include <algorithm>

#include "base/check.h"

namespace ballast {

int64_t usual_snapshots(int64_t capacity_tokens, int64_t slots_of_requests, int64_t least) {
  return std::max({capacity_tokens / kSnapshotDistance, slots_of_requests, least});
}

StateSlots::StateSlots(int32_t num_cache_blocks, const StateConfig& config) : config_(config) {
  if (!is_used()) return;
  slots_.resize(static_cast<size_t>(config.num_slots) + 1);
  snapshots_.resize(static_cast<size_t>(num_cache_blocks) + 1, kNullSlot);
  free_.reserve(static_cast<size_t>(config.num_slots));
  for (int32_t id = config.num_slots; id >= 1; --id) free_.push_back(StateSlot{id});
}

size_t StateSlots::num_usable(const std::vector<BlockId>& blocks) const {
  size_t end = blocks.size();
  if (is_used()) {
    while (end > 0 && of(blocks[end - 1]) == kNullSlot) --end;
  }
  return end;
}

StateSlot StateSlots::take() {
  if (free_.empty()) {
    BALLAST_CHECK(!unheld_.empty());
    const StateSlot evicted = unheld_.begin()->second;
    unheld_.erase(unheld_.begin());
    detach(evicted);
    ++num_evicted_;
    free_.push_back(evicted);
  }
  const StateSlot taken = free_.back();
  free_.pop_back();
  slot(taken).num_holders = 1;
  ++num_held_;
  return taken;
}

void StateSlots::hold(StateSlot id) {
  if (id == kNullSlot) return;
  Slot& held = slot(id);
  if (held.num_holders++ > 0) return;
  BALLAST_CHECK(held.block != kNullBlock);
  unheld_.erase(eviction_key(held));
  ++num_held_;
}

void StateSlots::release(StateSlot id) {
  if (id == kNullSlot) return;
  Slot& released = slot(id);
  BALLAST_CHECK(released.num_holders > 0);
  if (--released.num_holders > 0) return;
  --num_held_;
  released.number = ++num_uses_;
  if (released.block == kNullBlock)
    free_.push_back(id);
  else
    unheld_.emplace(eviction_key(released), id);
}

bool StateSlots::is_own(StateSlot id) const {
  return id != kNullSlot && slot(id).num_holders == 1 && slot(id).block == kNullBlock;
}

void StateSlots::attach(BlockId block, StateSlot id, const SnapshotUse& use, int32_t num_tokens) {
  if (of(block) != kNullSlot) {
    this->use(block, use);
    return;
  }
  Slot& attached = slot(id);
  BALLAST_CHECK(attached.num_holders > 0 && attached.block == kNullBlock);
  attached.block = block;
  attached.num_tokens = num_tokens;
  snapshots_[index_of(block)] = id;
  ++num_snapshots_;
  set_use(id, use, ++num_uses_);
}

std::vector<int32_t> StateSlots::positions(size_t most) const {
  std::vector<std::pair<int64_t, int32_t>> found;
  for (const Slot& each : slots_) {
    if (each.block != kNullBlock) found.emplace_back(-each.number, each.num_tokens);
  }
  std::sort(found.begin(), found.end());
  found.resize(std::min(found.size(), most));
  std::vector<int32_t> positions;
  for (const auto& [number, num_tokens] : found) positions.push_back(num_tokens);
  return positions;
}

void StateSlots::restore(BlockId block, StateSlot id) {
  const auto found = std::find(free_.begin(), free_.end(), id);
  BALLAST_CHECK(found != free_.end() && of(block) == kNullSlot);
  free_.erase(found);
  slot(id).block = block;
  snapshots_[index_of(block)] = id;
  ++num_snapshots_;
  SnapshotUse use;
  use.request = -int64_t{static_cast<int32_t>(id)};  // a slot has one snapshot, so no other has this number
  use.ends = kAllEnds;
  set_use(id, use, ++num_uses_);
}

void StateSlots::use(BlockId block, const SnapshotUse& use) {
  if (of(block) == kNullSlot) return;
  set_use(of(block), after_use(use_of(block), use), ++num_uses_);
}

void StateSlots::set_use(StateSlot id, const SnapshotUse& use, int64_t number) {
  Slot& used = slot(id);
  if (used.num_holders == 0) unheld_.erase(eviction_key(used));
  of_requests_.erase({used.use.request, id});
  used.use = use;
  used.number = number;
  if (use.request != 0) of_requests_.emplace(use.request, id);
  if (used.num_holders == 0) unheld_.emplace(eviction_key(used), id);
}

std::vector<StateSlot> StateSlots::of_request(int64_t request) const {
  std::vector<StateSlot> found;
  for (auto each = of_requests_.lower_bound({request, kNullSlot});
       each != of_requests_.end() && each->first == request; ++each) {
    found.push_back(each->second);
  }
  return found;
}

TurnEnds StateSlots::ends_of(int64_t request) const {
  TurnEnds ends = 0;
  for (const StateSlot id : of_request(request)) ends |= slot(id).use.ends;
  return ends;
}

void StateSlots::change_uses(int64_t request, const std::function<void(SnapshotUse&)>& change) {
  for (const StateSlot id : of_request(request)) {
    SnapshotUse use = slot(id).use;
    change(use);
    set_use(id, use, slot(id).number);
  }
}

void StateSlots::detach(StateSlot id) {
  Slot& detached = slot(id);
  snapshots_[index_of(detached.block)] = kNullSlot;
  detached.block = kNullBlock;
  of_requests_.erase({detached.use.request, id});
  detached.use = {};
  --num_snapshots_;
}

void StateSlots::drop(BlockId block) {
  const StateSlot dropped = of(block);
  if (dropped == kNullSlot) return;
  const bool is_held = slot(dropped).num_holders > 0;
  if (!is_held) unheld_.erase(eviction_key(slot(dropped)));
  detach(dropped);
  if (!is_held) free_.push_back(dropped);
}

void StateSlots::check(const std::vector<int32_t>& holders) const {
  if (!is_used()) return;
  std::vector<bool> is_free(slots_.size(), false);
  for (const StateSlot id : free_) {
    BALLAST_CHECK(id != kNullSlot && !is_free[index_of(id)]);
    is_free[index_of(id)] = true;
  }
  int32_t num_held = 0, num_snapshots = 0;
  size_t num_waiting = 0, num_of_requests = 0;
  for (size_t id = 1; id < slots_.size(); ++id) {
    const Slot& each = slots_[id];
    BALLAST_CHECK(each.num_holders == holders[id]);
    const bool is_held = each.num_holders > 0;
    const bool is_snapshot = each.block != kNullBlock;
    BALLAST_CHECK(is_free[id] == (!is_held && !is_snapshot));
    num_held += is_held;
    if (!is_snapshot) continue;
    ++num_snapshots;
    const size_t num_listed = of_requests_.count({each.use.request, StateSlot{static_cast<int32_t>(id)}});
    BALLAST_CHECK(num_listed == (each.use.request != 0));
    num_of_requests += num_listed;
    BALLAST_CHECK(index_of(snapshots_[index_of(each.block)]) == id);
    if (is_held) continue;
    ++num_waiting;
    const auto found = unheld_.find(eviction_key(each));
    BALLAST_CHECK(found != unheld_.end() && index_of(found->second) == id);
  }
  BALLAST_CHECK(num_held == num_held_ && num_snapshots == num_snapshots_ && num_waiting == unheld_.size());
  BALLAST_CHECK(num_of_requests == of_requests_.size());
  BALLAST_CHECK(holders[index_of(kNullSlot)] == 0);
}

}  // namespace ballast
