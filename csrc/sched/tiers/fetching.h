// Decides whether a prompt's blocks in a tier are fetched or recomputed. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sched/steps/step_planner.h"

namespace ballast {

// How fast a tier returns blocks.
struct FetchSpeed {
  double block_seconds = 0.0;  // as measured lately; 0: unknown
  int32_t num_ahead = 0;       // blocks queued in front, less own ones that have arrived
  // Blocks that take as long to bring back as the recurrent state after the last block; 0: there is none.
  int32_t blocks_per_state = 0;
};

// How many of the blocks that tiers hold are worth fetching. `found`: the tier of each block, ascending.
// Tiers fetch concurrently; the remaining ones of the last `num_tokens` are computed afterwards, with
// num_decode decoding requests. The tier of the last one also brings the state. All usable or no blocks of a
// tier are fetched; all of them if either time is unknown. `num_usable`: of the first blocks, those after
// which a request can begin.
size_t num_worth_fetching(
    const StepPlanner& planner, int32_t block_tokens, const std::vector<FetchSpeed>& tiers,
    const std::vector<int32_t>& found, int32_t num_tokens, int32_t num_decode,
    const std::function<size_t(size_t)>& num_usable = [](size_t num_blocks) { return num_blocks; });

}  // namespace ballast
