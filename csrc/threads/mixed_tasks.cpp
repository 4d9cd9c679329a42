#include "threads/mixed_tasks.h"

#include <numeric>

namespace ballast {

std::vector<MixedTask> mixed_tasks(const std::vector<int64_t>& counts) {
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  std::vector<int64_t> dealt(counts.size(), 0);
  std::vector<MixedTask> tasks;
  tasks.reserve(static_cast<size_t>(total));
  // The middle of task i of n is at (2 i + 1) / (2 n) of the whole.
  while (static_cast<int64_t>(tasks.size()) < total) {
    size_t next = 0;
    for (size_t row = 1; row < counts.size(); ++row) {
      if ((2 * dealt[row] + 1) * counts[next] < (2 * dealt[next] + 1) * counts[row]) next = row;
    }
    tasks.push_back({next, dealt[next]++});
  }
  return tasks;
}

}  // namespace ballast
