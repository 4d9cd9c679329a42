#include "sched/request_states.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "base/check.h"

namespace ballast {

RequestStates::RequestStates(int32_t block_tokens, int32_t max_batch_size, BlockManager& blocks,
                             TierMirror& tiers)
    : block_tokens_(block_tokens),
      most_saves_(blocks.states().num_slots() - least_state_slots(max_batch_size)),
      blocks_(blocks),
      tiers_(tiers),
      uses_(block_tokens, blocks, tiers) {}

void RequestStates::check_wanted(const std::string& name, const std::vector<int32_t>& snapshots_at,
                                 int64_t prompt_tokens) {
  int32_t last = 0;
  for (const int32_t num_tokens : snapshots_at) {
    if (num_tokens < last || num_tokens > prompt_tokens) {
      throw std::invalid_argument(name + " wants a snapshot after " + std::to_string(num_tokens) + " of " +
                                  std::to_string(prompt_tokens) +
                                  " prompt tokens; expected ascending numbers of its prompt's tokens");
    }
    last = num_tokens;
  }
}

void RequestStates::set_wanted(Request& request, const std::vector<int32_t>& snapshots_at,
                               const std::vector<int32_t>& snapshot_before) const {
  if (!slots().is_used()) return;
  for (const int32_t num_tokens : snapshots_at) request.snapshots_at.push_back(last_block_end(num_tokens));
  request.snapshot_before = snapshot_before;
}

void RequestStates::begin(Request& request) {
  if (!slots().is_used()) return;
  uses_.begin(request);
  if (request.blocks.empty()) return;
  tiers_.states().note_begin(request.blocks.back());
  const StateSlot snapshot = slots().of(request.blocks.back());
  BALLAST_CHECK(snapshot != kNullSlot);
  ++num_hits_;
  RequestState& state = request.state;
  state.live = state.kept = snapshot;
  state.num_kept = request.num_computed;
  slots().hold(snapshot);
  slots().hold(snapshot);
}

void RequestStates::plan(Request& request) {
  if (!slots().is_used()) return;
  RequestState& state = request.state;
  if (slots().is_own(state.live)) {
    state.next = state.live;
    slots().hold(state.next);
  } else {
    state.next = slots().take();
  }
}

// Besides the last one, which becomes the kept state.
bool RequestStates::is_wanted(const Request& request, int32_t num_tokens) const {
  if (num_tokens > request.prompt_tokens) return false;
  return num_tokens == last_block_end(request.prompt_tokens - 1) ||
         SnapshotUses::is_requested(request, num_tokens) || num_tokens == request.num_known * block_tokens_ ||
         is_on_grid(request, num_tokens);
}

bool RequestStates::is_on_grid(const Request& request, int32_t num_tokens) const {
  return num_tokens <= request.prompt_tokens && num_tokens % kSnapshotDistance < block_tokens_ &&
         num_tokens >= kSnapshotDistance;
}

void RequestStates::plan_saves(Request& request, int32_t num_without_slot) {
  if (!slots().is_used() || !blocks_.has_prefix_cache()) return;
  const int32_t end = request.num_computed + request.num_planned;
  const int32_t last = last_block_end(end);
  for (int32_t at = last_block_end(request.num_computed) + block_tokens_; at <= last && at < end;
       at += block_tokens_) {
    if (at != last && !is_wanted(request, at)) continue;
    if (num_saves_ + 2 * num_without_slot >= most_saves_) return;
    ++num_saves_;
    request.state.saves.push_back({at, slots().take()});
  }
}

bool RequestStates::attach(Request& request, int32_t num_tokens, StateSlot slot, const SnapshotUse& use) {
  const int32_t index = num_tokens / block_tokens_ - 1;
  if (index < 0 || index >= request.num_published) return false;
  const BlockId block = request.blocks[static_cast<size_t>(index)];
  if (!blocks_.is_known(block)) return false;
  slots().attach(block, slot, use, num_tokens);
  tiers_.states().note_use(block);
  tiers_.states().note_snapshot(block);
  return true;
}

void RequestStates::leave(Request& request, int32_t num_tokens, StateSlot slot, TurnEnds ends) {
  const SnapshotUse use = uses_.at(request, num_tokens, ends);
  if (attach(request, num_tokens, slot, use)) uses_.note_left(request, use);
}

void RequestStates::commit(Request& request) {
  if (!slots().is_used()) return;
  RequestState& state = request.state;
  const bool is_kept = !request.aborted;
  const auto keep = [&](int32_t num_tokens, StateSlot slot) {
    if (num_tokens == last_block_end(request.num_computed) && num_tokens > state.num_kept) {
      slots().hold(slot);
      slots().release(std::exchange(state.kept, slot));
      state.num_kept = num_tokens;
    }
    if (is_kept && is_wanted(request, num_tokens)) leave(request, num_tokens, slot);
  };
  for (const StateSave& save : state.saves) {
    keep(save.num_tokens, save.slot);
    slots().release(save.slot);
    --num_saves_;
  }
  state.saves.clear();
  slots().release(std::exchange(state.live, std::exchange(state.next, kNullSlot)));
  if (request.num_computed % block_tokens_ == 0) keep(request.num_computed, state.live);
  if (is_kept) keep_before_opener(request);
}

// The step's token is the first one of the reply that is to have a snapshot before it.
void RequestStates::keep_before_opener(Request& request) {
  const std::vector<int32_t>& openers = request.snapshot_before;
  if (request.num_generated() == 0 || request.num_uncomputed() != 1) return;
  if (std::find(openers.begin(), openers.end(), request.tokens.back()) == openers.end()) return;
  request.snapshot_before.clear();
  request.continuation.calls = true;
  leave(request, request.state.num_kept, request.state.kept, kBeforeCall);
}

void RequestStates::preempt(Request& request) {
  if (!slots().is_used()) return;
  const RequestState& state = request.state;
  if (!slots().is_snapshot(state.kept)) {
    attach(request, state.num_kept, state.kept, uses_.at_preemption(request, state.num_kept));
  }
  release(request);
}

void RequestStates::abort(Request& request) {
  if (!slots().is_used()) return;
  release(request);
  uses_.abort(request);
}

void RequestStates::release(Request& request) {
  RequestState& state = request.state;
  BALLAST_CHECK(state.next == kNullSlot && state.saves.empty());
  slots().release(state.live);
  slots().release(state.kept);
  slots().release(state.fetched);
  state = {};
}

void RequestStates::finish(Request& request) {
  if (!slots().is_used()) return;
  std::set<int32_t> ends(request.snapshots_at.begin(), request.snapshots_at.end());
  ends.insert(request.state.num_kept);
  leave(request, request.state.num_kept, request.state.kept, kAfterReply);
  release(request);
  uses_.finish(request);
  std::vector<BlockId> blocks;
  for (const int32_t num_tokens : ends) {
    const int32_t index = num_tokens / block_tokens_ - 1;
    if (index < 0 || index >= request.num_published) continue;
    const BlockId block = request.blocks[static_cast<size_t>(index)];
    if (slots().of(block) != kNullSlot) blocks.push_back(block);
  }
  tiers_.states().note_end(blocks);
}

void RequestStates::begin_fetch(Request& request) {
  if (slots().is_used()) request.state.fetched = slots().take();
}

void RequestStates::end_fetch(Request& request, bool is_complete) {
  if (!slots().is_used()) return;
  RequestState& state = request.state;
  const StateSlot fetched = std::exchange(state.fetched, kNullSlot);
  if (!is_complete) {
    slots().release(fetched);
    return;
  }
  num_hits_ += state.live == kNullSlot;  // otherwise it counts already
  slots().hold(fetched);
  slots().release(std::exchange(state.live, fetched));
  slots().release(std::exchange(state.kept, fetched));
  state.num_kept = request.num_computed;
  attach(request, state.num_kept, fetched, state.fetched_use);
  uses_.begin_fetched(request);
}

}  // namespace ballast
