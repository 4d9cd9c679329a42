#include "sched/lane.h"

#include <algorithm>

namespace ballast {

namespace {

// How much longer prompts may make a step of the decode lane where max_stall_s does not say, in steps without
// them. With one lane all prompts depend on it; with two, only those that the other one would hardly serve
// sooner.
constexpr double kAutoStallOfOneLane = 3.5;
constexpr double kAutoStallOfTwoLanes = 1.0;

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
  const auto step_s = [&](int32_t count) { return config.decode_costs.seconds(num_decode + count); };
  const int32_t last = num_tokens % budget;
  const double beside_s = num_tokens / budget * step_s(budget) + (last > 0 ? step_s(last) : 0.0);
  return beside_s <= config.prefill_costs.seconds(num_tokens) ? Lane::kDecode : Lane::kPrefill;
}

}  // namespace ballast
