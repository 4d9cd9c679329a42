#include "sched/prompt_lanes.h"

#include <algorithm>
#include <vector>

namespace ballast {

int32_t PromptLanes::assign(const LaneState& lanes, Lane lane) {
  ++num_assignments_;
  std::vector<Request*> candidates;
  std::vector<int32_t> prompts;
  const auto consider = [&](Request& request, int32_t num_tokens) {
    if (request.scores_prompt) {  // the prefill lane computes no log probabilities
      request.prompt_lane = Lane::kDecode;
      request.assignment = num_assignments_;
      return;
    }
    candidates.push_back(&request);
    prompts.push_back(num_tokens);
  };
  for (Request* request : state_.running) {
    if (request->continues_prompt()) consider(*request, request->num_uncomputed());
  }
  int32_t num_free = state_.running.num_free_slots();
  int32_t num_blocks = state_.blocks.num_available();
  for (size_t i = 0; i < std::min(state_.queue.size(), Admission::kMostConsidered) && num_free > 0; ++i) {
    Request& request = state_.queue[i];
    if (admission_.waits_for_leader(request)) continue;
    // Without a second lane only the number of prompts counts, so nothing is looked up.
    const bool has_lanes = state_.config.has_prefill_lane();
    const int32_t num_tokens = has_lanes ? admission_.match(request) : request.num_tokens();
    num_blocks -= admission_.num_new_blocks(request);
    if (num_blocks < 0) break;
    consider(request, num_tokens);
    num_free -= request.found.empty();  // a request that will fetch needs no slot now
  }
  const std::vector<Lane> assigned = state_.planner.assign_lanes(lanes, prompts);
  for (size_t i = 0; i < candidates.size(); ++i) {
    candidates[i]->prompt_lane = assigned[i];
    candidates[i]->assignment = num_assignments_;
  }
  return static_cast<int32_t>(std::count(assigned.begin(), assigned.end(), lane));
}

bool PromptLanes::is_assigned(const Request& request, Lane lane) const {
  if (!state_.config.has_prefill_lane()) return lane == Lane::kDecode;
  return request.assignment == num_assignments_ && request.prompt_lane == lane;
}

bool PromptLanes::holds_pass(std::optional<double> now_s, double release_interval_s) {
  const auto is_next = [&](const Request* request) { return is_assigned(*request, Lane::kPrefill); };
  const auto count = std::count_if(state_.queue.begin(), state_.queue.end(), is_next);
  const int32_t num_prompts = static_cast<int32_t>(count);
  const bool is_part_way =
      std::any_of(state_.running.begin(), state_.running.end(),
                  [&](const Request* request) { return request->continues_prompt() && is_next(request); });
  const auto num_free = static_cast<size_t>(state_.running.num_free_slots());
  if (!now_s || num_prompts == 0 || is_part_way || state_.queue.size() <= num_free ||
      !state_.planner.holds_pass(state_.num_decode, num_prompts, *now_s - held_since_s_.value_or(*now_s),
                                 release_interval_s)) {
    held_since_s_.reset();
    return false;
  }
  held_since_s_ = held_since_s_.value_or(*now_s);
  return true;
}

}  // namespace ballast
