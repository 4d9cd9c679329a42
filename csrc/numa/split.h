// Divides work and threads among nodes.
#pragma once

#include <cstdint>
#include <vector>

#include "base/index_range.h"

namespace ballast {

// Divides `total` in proportion to `capacities`; the rest after division goes to the largest remainders, ties
// to the first. No result exceeds its capacity unless total exceeds their sum. All are 0 if all capacities
// are.
std::vector<int64_t> apportion(int64_t total, const std::vector<int>& capacities);

// 0…total as one range a node, in order: whole units (the last may be shorter), in proportion to the nodes'
// threads. A node may get an empty range.
std::vector<IndexRange> split_among_nodes(int64_t total, int64_t unit,
                                          const std::vector<int>& threads_per_node);

}  // namespace ballast
