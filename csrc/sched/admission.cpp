#include "sched/admission.h"

#include <algorithm>

#include "sched/prompt_lanes.h"

namespace ballast {

void Admission::admit(StepDraft& draft, const PromptLanes& lanes) {
  const Request* skipped = nullptr;  // the first one
  size_t num_skipped = 0;
  while (draft.budget() > 0 && num_skipped < std::min(state_.queue.size(), kMostConsidered)) {
    Request& request = state_.queue[num_skipped];
    if (state_.running.num_free_slots() == 0 || draft.allowance(request, draft.budget()) == 0) return;
    // A request that this step preempted starts again in a later step, after the requests that needed its
    // room.
    if (draft.has_preempted(request.seq)) return;
    if (waits_for_leader(request) || !fits_in_step(request, draft, lanes) || waits_to_fetch(request)) {
      if (skipped == nullptr && !leader_has_no_slot(request)) skipped = &request;
      ++num_skipped;
      continue;
    }
    // A request that will fetch needs no slot now.
    const bool is_slot_reserved = skipped != nullptr && skipped->found.empty() && request.found.empty();
    if (state_.running.num_free_slots() == is_slot_reserved) return;
    const int32_t num_reserved = skipped == nullptr ? 0 : state_.request_blocks.num_to_admit(*skipped);
    const int32_t num_available =
        state_.blocks.num_available() - state_.blocks.num_unheld(request.match) - num_reserved;
    if (num_new_blocks(request) > num_available) return;
    state_.queue.admit(num_skipped);
    start(request, draft);
  }
}

int32_t Admission::match(Request& request) const {
  if (!request.scores_prompt) {
    state_.blocks.match(request.tokens, request.salt, request.match);
    state_.tiers.match(request, state_.planner, state_.num_decode);
  }
  const size_t num_blocks = request.match.num_usable + request.found.size();
  return request.num_tokens() - static_cast<int32_t>(num_blocks) * state_.config.block_tokens;
}

int32_t Admission::num_new_blocks(const Request& request) const {
  return state_.request_blocks.num_to_admit(request) - static_cast<int32_t>(request.match.num_usable);
}

// Whether this step may start a waiting request, if there is room for it. While a prompt is partly computed,
// only much shorter prompts may start, because they delay it little.
bool Admission::fits_in_step(Request& request, const StepDraft& draft, const PromptLanes& lanes) const {
  if (!lanes.is_assigned(request, draft.lane())) return false;
  const int32_t num_tokens = match(request);
  const Request* part_way = draft.part_way();
  return part_way == nullptr ||
         int64_t{num_tokens} * kJoiningShare <= part_way->num_uncomputed() - part_way->num_planned;
}

// A request that was just taken out of the queue begins to run.
void Admission::start(Request& request, StepDraft& draft) {
  state_.request_blocks.begin(request);
  state_.request_states.begin(request);
  request.fetches_first = !request.admitted_before;
  if (!request.admitted_before) {
    request.admitted_before = true;
    request.num_cached_tokens = request.num_computed;
    state_.prefix_hit_tokens += request.num_computed;
    state_.prefix_cut_tokens += int64_t{request.num_cut} * state_.config.block_tokens;
    if (state_.config.prefix_cache && !request.scores_prompt) {
      state_.prefix_query_tokens += request.prompt_tokens;
    }
  }
  state_.running.insert(&request);
  state_.request_blocks.acquire(request, request.num_uncomputed());
  if (!request.found.empty()) {
    state_.request_states.begin_fetch(request);
    state_.request_blocks.acquire_fetched_windows(
        request, request.num_published + static_cast<int32_t>(request.found.size()));
  }
  state_.tiers.begin_fetch(request);
  if (request.is_fetching()) return;
  state_.running.acquire_slot(request);
  draft.add(request, std::min(request.num_uncomputed(), draft.allowance(request, draft.budget())));
  if (draft.part_way() == nullptr && request.num_planned < request.num_uncomputed()) {
    draft.set_part_way(&request);
  }
}

bool Admission::waits_for_leader(const Request& request) const {
  if (!request.leader) return false;
  const auto leader = state_.requests.find(*request.leader);
  return leader != state_.requests.end() && !leader->second->aborted && leader->second->num_generated() == 0;
}

// Whether a request waits for a leader that waits as well: room that is reserved for the follower would be
// missing for the leader. A leader of another client may have a later turn.
bool Admission::leader_has_no_slot(const Request& request) const {
  return waits_for_leader(request) && !state_.requests.at(*request.leader)->has_slot;
}

// Whether a request whose prefix continues in tiers waits until fewer others fetch: they hold blocks that
// decoding may need.
bool Admission::waits_to_fetch(const Request& request) const {
  return !request.found.empty() && !(state_.running.may_fetch_more() &&
                                     state_.request_states.may_fetch(state_.running.num_without_slot()));
}

}  // namespace ballast
