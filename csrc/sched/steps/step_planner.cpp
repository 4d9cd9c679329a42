#include "sched/steps/step_planner.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace ballast {

namespace {

// The default of max_stall_s, as a multiple of the step's duration without prompts. It is larger with one
// lane, because all prompts depend on that lane then.
constexpr double kAutoStallOfOneLane = 3.0;
constexpr double kAutoStallOfTwoLanes = 1.0;

// Seconds of steps of `budget` tokens, the last one shorter, each with num_decode decoding requests.
double seconds_of_steps(const CostCurve& costs, int32_t num_tokens, int32_t budget, int32_t num_decode) {
  const int32_t last = num_tokens % budget;
  return num_tokens / budget * costs.seconds(num_decode + budget) +
         (last > 0 ? costs.seconds(num_decode + last) : 0.0);
}

}  // namespace

int32_t StepPlanner::idle_chunk() const {
  if (!config_.has_prefill_lane()) return config_.prefill_chunk_size;
  return std::min(config_.prefill_chunk_size, std::max(config_.chunk_size, kMaxIdleTokens));
}

int32_t StepPlanner::prompt_budget(int32_t num_decode, int32_t num_prompts, bool in_pass,
                                   int32_t num_draft_tokens) const {
  // During a pass no step is longer than chunk_size: the device has memory for one long step at a time.
  if (num_decode == 0) return in_pass ? std::min(config_.chunk_size, idle_chunk()) : idle_chunk();
  const int32_t num_tokens = num_decode + num_draft_tokens;
  const int32_t most = config_.chunk_size - num_tokens;
  if (!costs_.are_known()) return most;
  const CostCurve& costs = costs_.decode(in_pass);
  const double alone_s = costs.seconds(num_tokens);
  const double crowding = std::max(1.0, static_cast<double>(num_prompts) / num_decode);
  const double auto_s =
      alone_s * crowding * (config_.has_prefill_lane() ? kAutoStallOfTwoLanes : kAutoStallOfOneLane);
  const double limit_s = alone_s + config_.max_stall_s.value_or(auto_s);
  const int32_t within = costs.tokens_within(limit_s, config_.chunk_size) - num_tokens;
  return std::min(most, std::max(1, within));
}

std::vector<Lane> StepPlanner::assign_lanes(const LaneState& state,
                                            const std::vector<int32_t>& prompts) const {
  std::vector<Lane> best(prompts.size(), Lane::kDecode);
  if (!config_.has_prefill_lane() || prompts.empty()) return best;
  if (config_.prefill_lane_tokens) {
    for (size_t i = 0; i < prompts.size(); ++i) {
      if (prompts[i] >= *config_.prefill_lane_tokens) best[i] = Lane::kPrefill;
    }
    return best;
  }
  std::vector<size_t> by_length(prompts.size());
  std::iota(by_length.begin(), by_length.end(), size_t{0});
  std::stable_sort(by_length.begin(), by_length.end(),
                   [&](size_t a, size_t b) { return prompts[a] < prompts[b]; });
  std::vector<Lane> lanes(prompts.size(), Lane::kPrefill);
  double least = sum_of_first_tokens(state, prompts, lanes);
  std::vector<Lane> candidate = lanes;
  for (const size_t index : by_length) {
    lanes[index] = Lane::kDecode;
    const double sum = sum_of_first_tokens(state, prompts, lanes);
    // Of equals the decode lane: it needs no streaming.
    if (sum <= least) {
      least = sum;
      candidate = lanes;
    }
  }
  return candidate;
}

double StepPlanner::sum_of_first_tokens(const LaneState& state, const std::vector<int32_t>& prompts,
                                        const std::vector<Lane>& lanes) const {
  std::vector<int32_t> in_decode, in_prefill;
  for (size_t i = 0; i < prompts.size(); ++i) {
    (lanes[i] == Lane::kDecode ? in_decode : in_prefill).push_back(prompts[i]);
  }
  const bool during_decode = state.num_decode > 0 || state.decode_lane_s > 0.0 || !in_decode.empty();
  const DecodeLane decode = decode_lane(state, std::move(in_decode), !in_prefill.empty());
  const double begin_s = std::max(state.prefill_lane_s, decode.link_busy_s);
  return decode.sum_s + prefill_lane_sum(costs_.prefill(during_decode), begin_s, in_prefill);
}

StepPlanner::DecodeLane StepPlanner::decode_lane(const LaneState& state, std::vector<int32_t> prompts,
                                                 bool passes_follow) const {
  DecodeLane lane{0.0, state.uses_link ? state.decode_lane_s : 0.0};
  double now_s = state.decode_lane_s;
  int32_t num_decode = state.num_decode;
  bool in_pass = state.in_pass() || (passes_follow && state.uses_link);
  for (size_t first = 0; first < prompts.size();) {
    const int32_t num_left = static_cast<int32_t>(prompts.size() - first);
    const int32_t budget = prompt_budget(num_decode, num_left, in_pass);
    if (budget <= 0) return {std::numeric_limits<double>::infinity(), lane.link_busy_s};
    // A prompt that fills several steps fills the first ones alone.
    const int32_t num_whole = (prompts[first] - 1) / budget;
    int32_t left = budget, num_done = 0;
    if (num_whole == 0) {
      for (; first < prompts.size() && prompts[first] <= left; ++first, ++num_done) left -= prompts[first];
      if (first < prompts.size()) {
        prompts[first] -= left;
        left = 0;
      }
    } else {
      left = 0;
    }
    const int32_t num_tokens = num_decode + budget - left;
    // Only the first step can use the link if passes follow: then they do.
    const int32_t num_steps = std::max(1, passes_follow && !in_pass ? 1 : num_whole);
    if (num_whole > 0) prompts[first] -= num_steps * budget;
    now_s += num_steps * costs_.decode(in_pass).seconds(num_tokens);
    if (passes_follow && uses_link(num_tokens, in_pass)) lane.link_busy_s = now_s;
    in_pass = in_pass || passes_follow;
    lane.sum_s += num_done * now_s;
    num_decode = std::min(num_decode + num_done, config_.max_batch_size);
  }
  return lane;
}

double StepPlanner::prefill_lane_sum(const CostCurve& costs, double begin_s,
                                     const std::vector<int32_t>& prompts) const {
  double now_s = begin_s, sum = 0.0;
  int32_t in_pass = 0, num_done = 0;
  const auto end_pass = [&] {
    now_s += costs.seconds(in_pass);
    sum += num_done * now_s;
    in_pass = num_done = 0;
  };
  for (int32_t tokens : prompts) {
    while (in_pass + tokens > config_.prefill_chunk_size) {
      tokens -= config_.prefill_chunk_size - in_pass;
      in_pass = config_.prefill_chunk_size;
      end_pass();
    }
    in_pass += tokens;
    ++num_done;
  }
  if (in_pass > 0) end_pass();
  return sum;
}

bool StepPlanner::holds_pass(int32_t num_decode, int32_t num_prompts, double held_s,
                             double release_interval_s) const {
  const double in_pass_s = costs_.decode(/*in_pass=*/true).seconds(num_decode);
  if (num_decode == 0 || in_pass_s <= 0.0 || release_interval_s <= 0.0) return false;
  const double slowdown = std::max(0.0, 1.0 - costs_.decode().seconds(num_decode) / in_pass_s);
  const double gain_s = num_decode * slowdown * costs_.prefill(/*during_decode=*/true).seconds(1);
  return num_prompts * (held_s + release_interval_s) < gain_s;
}

double StepPlanner::prompt_seconds(int32_t num_tokens, int32_t num_decode) const {
  if (!costs_.are_known() || num_tokens <= 0) return 0.0;
  LaneState state;
  state.num_decode = num_decode;
  if (assign_lanes(state, {num_tokens}).front() == Lane::kPrefill) {
    return seconds_of_steps(costs_.prefill(num_decode > 0), num_tokens, config_.prefill_chunk_size, 0);
  }
  const int32_t budget = std::max(1, prompt_budget(num_decode, 1));
  return seconds_of_steps(costs_.decode(), num_tokens, budget, num_decode);
}

}  // namespace ballast
