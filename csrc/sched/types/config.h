// The scheduler's limits, constant for its lifetime.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kv/state_slots.h"
#include "kv/tier.h"
#include "kv/window_blocks.h"
#include "sched/types/cost_curve.h"

namespace ballast {

// Most tokens of a decode-lane step in which nothing decodes, if there is a prefill lane and chunk_size is
// not larger: beyond it, streaming alone is as fast and leaves the decode lane free.
inline constexpr int32_t kMaxIdleTokens = 1024;

struct SchedulerConfig {
  int32_t num_blocks;      // usable blocks, in addition to the null block
  int32_t block_tokens;    // tokens per block
  int32_t max_batch_size;  // most rows of a step; the same number of further requests may fetch from tiers
  int32_t chunk_size;      // most tokens of a step with decode rows
  int32_t prefill_chunk_size;  // most tokens of any other step
  bool prefix_cache;
  CostCurve decode_costs = {};   // of a decode-lane step; empty: unknown, and no step is bounded by its cost
  CostCurve prefill_costs = {};  // of a prefill-lane pass; empty: there is no such lane
  // Minimum number of tokens of a prompt that uses the prefill lane; none: the planner decides by the costs.
  std::optional<int32_t> prefill_lane_tokens = {};
  // Decode-lane steps with prompts and `first` to `second` tokens use the link to the device, as passes do:
  // no pass begins meanwhile, and during a pass they are computed without it. None: decode-lane steps never
  // use it.
  std::optional<std::pair<int32_t, int32_t>> joint_tokens = {};
  // Most seconds that prompts may add to a step in which something decodes; none: see StepPlanner.
  std::optional<double> max_stall_s = {};

  std::vector<TierConfig> tiers = {};  // copies of the cache's blocks outside the device, the fastest first
  WindowConfig window = {};            // of the layers that free what is behind their windows
  StateConfig states = {};             // of the layers with recurrent state

  bool has_prefill_lane() const { return !prefill_costs.empty(); }
  // Most tokens of a step of the decode lane, of any kind.
  int32_t most_decode_lane_tokens() const {
    if (!has_prefill_lane()) return std::max(chunk_size, prefill_chunk_size);
    return std::max(chunk_size, std::min(prefill_chunk_size, kMaxIdleTokens));
  }
  // Most tokens of all steps that can be outstanding at the same time.
  int32_t most_outstanding_tokens() const {
    return most_decode_lane_tokens() + (has_prefill_lane() ? prefill_chunk_size : 0);
  }
  int64_t capacity_tokens() const { return int64_t{num_blocks} * block_tokens; }

  // Throws std::invalid_argument naming the field, its value and what would work.
  void validate() const;
};

}  // namespace ballast
