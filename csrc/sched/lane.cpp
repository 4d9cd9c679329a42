#include "sched/lane.h"

#include <algorithm>

namespace ballast {

namespace {

// How much longer prompts may make a step of the decode lane where max_stall_s does not say, in steps without
// them. With one lane all prompts depend on it; with two, only those that the other one would hardly serve
// sooner.
constexpr double kAutoStallOfOneLane = 3.0;
constexpr double kAutoStallOfTwoLanes = 1.0;

// Of steps of `budget` tokens, but for the last one, each beside num_decode others.
double seconds_of_steps(const CostCurve& costs, int32_t num_tokens, int32_t budget, int32_t num_decode) {
  const int32_t last = num_tokens % budget;
  return num_tokens / budget * costs.seconds(num_decode + budget) +
         (last > 0 ? costs.seconds(num_decode + last) : 0.0);
}

}  // namespace

int32_t prompt_budget(const SchedulerConfig& config, int32_t num_decode) {
  if (num_decode == 0) return config.has_prefill_lane() ? config.chunk_size : config.prefill_chunk_size;
  const int32_t most = config.chunk_size - num_decode;
  if (config.decode_costs.empty()) return most;
  const double alone_s = config.decode_costs.seconds(num_decode);
  const double auto_s = alone_s * (config.has_prefill_lane() ? kAutoStallOfTwoLanes : kAutoStallOfOneLane);
  const double limit_s = alone_s + config.max_stall_s.value_or(auto_s);
  const int32_t within = config.decode_costs.tokens_within(limit_s, config.chunk_size) - num_decode;
  return std::min(most, std::max(1, within));
}

Lane cheaper_lane(const SchedulerConfig& config, int32_t num_tokens, int32_t num_decode) {
  if (!config.has_prefill_lane()) return Lane::kDecode;
  if (config.prefill_lane_tokens) {
    return num_tokens < *config.prefill_lane_tokens ? Lane::kDecode : Lane::kPrefill;
  }
  const int32_t budget = prompt_budget(config, num_decode);
  if (budget <= 0) return Lane::kPrefill;
  const double beside_s = seconds_of_steps(config.decode_costs, num_tokens, budget, num_decode);
  return beside_s <= config.prefill_costs.seconds(num_tokens) ? Lane::kDecode : Lane::kPrefill;
}

double prompt_seconds(const SchedulerConfig& config, int32_t num_tokens, int32_t num_decode) {
  if (config.decode_costs.empty()) return 0.0;
  if (cheaper_lane(config, num_tokens, num_decode) == Lane::kPrefill) {
    return seconds_of_steps(config.prefill_costs, num_tokens, config.prefill_chunk_size, 0);
  }
  const int32_t budget = std::max(1, prompt_budget(config, num_decode));
  return seconds_of_steps(config.decode_costs, num_tokens, budget, num_decode);
}

}  // namespace ballast
