#include "sched/request_states.h"

#include <utility>

#include "base/check.h"

namespace ballast {

RequestStates::RequestStates(int32_t block_tokens, int32_t max_batch_size, BlockManager& blocks)
    : block_tokens_(block_tokens),
      most_saves_(blocks.states().num_slots() - least_state_slots(max_batch_size)),
      blocks_(blocks) {}

void RequestStates::begin(Request& request) {
  if (!slots().is_used() || request.blocks.empty()) return;
  const StateSlot snapshot = slots().of(request.blocks.back());
  BALLAST_CHECK(snapshot != kNullSlot);
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
         num_tokens == request.num_known * block_tokens_ || is_on_grid(request, num_tokens);
}

bool RequestStates::is_on_grid(const Request& request, int32_t num_tokens) const {
  return num_tokens <= request.prompt_tokens && num_tokens % kSnapshotDistance < block_tokens_ &&
         num_tokens >= kSnapshotDistance;
}

void RequestStates::plan_saves(Request& request) {
  if (!slots().is_used() || !blocks_.has_prefix_cache()) return;
  const int32_t end = request.num_computed + request.num_planned;
  const int32_t last = last_block_end(end);
  for (int32_t at = last_block_end(request.num_computed) + block_tokens_; at <= last && at < end;
       at += block_tokens_) {
    if (at != last && !is_wanted(request, at)) continue;
    if (num_saves_ == most_saves_) return;
    ++num_saves_;
    request.state.saves.push_back({at, slots().take()});
  }
}

void RequestStates::attach(Request& request, int32_t num_tokens, StateSlot slot) {
  const int32_t index = num_tokens / block_tokens_ - 1;
  if (index < 0 || index >= request.num_published) return;
  const BlockId block = request.blocks[static_cast<size_t>(index)];
  if (!blocks_.is_known(block)) return;
  const bool ends_prompt = num_tokens == last_block_end(request.prompt_tokens - 1);
  slots().attach(block, slot, is_on_grid(request, num_tokens) && !ends_prompt);
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
    if (is_kept && is_wanted(request, num_tokens)) attach(request, num_tokens, slot);
  };
  for (const StateSave& save : state.saves) {
    keep(save.num_tokens, save.slot);
    slots().release(save.slot);
    --num_saves_;
  }
  state.saves.clear();
  slots().release(std::exchange(state.live, std::exchange(state.next, kNullSlot)));
  if (request.num_computed % block_tokens_ == 0) keep(request.num_computed, state.live);
}

void RequestStates::release(Request& request, bool keeps) {
  if (!slots().is_used()) return;
  RequestState& state = request.state;
  BALLAST_CHECK(state.next == kNullSlot && state.saves.empty());
  if (keeps && state.kept != kNullSlot && !slots().is_snapshot(state.kept)) {
    attach(request, state.num_kept, state.kept);
  }
  slots().release(state.live);
  slots().release(state.kept);
  state = {};
}

}  // namespace ballast
