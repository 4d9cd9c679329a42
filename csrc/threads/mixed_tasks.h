// Interleaves several lists of tasks, for loops whose tasks use different parts of the machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ballast {

struct MixedTask {
  size_t row;
  int64_t index;
};

// Tasks 0…counts[row] of every row. The tasks of a row are in order and spread evenly over the result.
std::vector<MixedTask> mixed_tasks(const std::vector<int64_t>& counts);

}  // namespace ballast
