#include "numa/split.h"

#include <algorithm>
#include <numeric>

namespace ballast {

std::vector<int64_t> apportion(int64_t total, const std::vector<int>& capacities) {
  const int64_t sum = std::accumulate(capacities.begin(), capacities.end(), int64_t{0});
  std::vector<int64_t> shares(capacities.size(), 0);
  if (sum == 0) return shares;
  std::vector<size_t> order(capacities.size());
  std::iota(order.begin(), order.end(), size_t{0});
  int64_t left = total;
  for (size_t i = 0; i < capacities.size(); ++i) {
    shares[i] = total * capacities[i] / sum;
    left -= shares[i];
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return total * capacities[a] % sum > total * capacities[b] % sum;
  });
  for (size_t i = 0; i < static_cast<size_t>(left); ++i) ++shares[order[i]];
  return shares;
}

std::vector<IndexRange> split_among_nodes(int64_t total, int64_t unit,
                                          const std::vector<int>& threads_per_node) {
  const Chunks units(total, unit);
  std::vector<IndexRange> ranges;
  int64_t begin = 0;
  for (int64_t share : apportion(units.count(), threads_per_node)) {
    const int64_t end = std::min(begin + share * unit, total);
    ranges.push_back({begin, end});
    begin = end;
  }
  return ranges;
}

}  // namespace ballast
