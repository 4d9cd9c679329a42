// Whether what a tier has of a prompt is sooner brought back or computed. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "sched/config.h"

namespace ballast {

// How fast a tier brings blocks back.
struct FetchSpeed {
  double block_seconds = 0.0;  // as measured lately; 0: nobody knows
  int32_t num_ahead = 0;       // blocks that it brings before
};

// How many of the blocks that tiers have are worth fetching; `found`: which tier, of each, ascending. Tiers
// bring theirs at the same time, and what is left of the last `num_tokens` is computed then, beside
// num_decode requests that decode. All of a tier's are, or none; and all, where nobody knows how long either
// takes.
size_t num_worth_fetching(const SchedulerConfig& config, const std::vector<FetchSpeed>& tiers,
                          const std::vector<int32_t>& found, int32_t num_tokens, int32_t num_decode);

}  // namespace ballast
