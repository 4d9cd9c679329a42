// The scheduler's limits, fixed for its life.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kv/tier.h"
#include "sched/cost_curve.h"

namespace ballast {

struct SchedulerConfig {
  int32_t num_blocks;          // usable blocks; the null block comes on top
  int32_t block_tokens;        // tokens per block
  int32_t max_batch_size;      // most rows of a step; as many requests more may fetch from tiers
  int32_t chunk_size;          // most tokens of a step in which something decodes
  int32_t prefill_chunk_size;  // most tokens of any other step
  int32_t max_queue;           // most requests that wait for their first step
  bool prefix_cache;
  CostCurve decode_costs =
      {};  // of a step of the decode lane; empty: nobody knows, and nothing is bounded by it
  CostCurve prefill_costs = {};  // of a step of the prefill lane; empty: there is no such lane
  std::optional<int32_t> prefill_lane_tokens =
      {};  // prompts of so many go to the prefill lane; none: by the costs
  std::optional<double> max_stall_s =
      {};  // most that prompts may add to a step that others wait for; none: auto

  std::vector<TierConfig> tiers = {};  // places for what the cache holds, the fastest first

  bool has_prefill_lane() const { return !prefill_costs.empty(); }
  int64_t capacity_tokens() const { return int64_t{num_blocks} * block_tokens; }

  // Throws std::invalid_argument naming the field, its value and what would work.
  void validate() const;
};

}  // namespace ballast
