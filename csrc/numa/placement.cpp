#include "numa/placement.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>

namespace ballast {
namespace {

// `total` dealt out in proportion to `capacities`; what division leaves over goes to the largest remainders,
// the first of equals first. No share exceeds its capacity unless total exceeds their sum.
std::vector<int> apportion(int total, const std::vector<int>& capacities) {
  const int64_t sum = std::accumulate(capacities.begin(), capacities.end(), int64_t{0});
  std::vector<int> shares(capacities.size(), 0);
  if (sum == 0) return shares;
  std::vector<size_t> order(capacities.size());
  std::iota(order.begin(), order.end(), size_t{0});
  int left = total;
  for (size_t i = 0; i < capacities.size(); ++i) {
    shares[i] = static_cast<int>(total * int64_t{capacities[i]} / sum);
    left -= shares[i];
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return total * int64_t{capacities[a]} % sum > total * int64_t{capacities[b]} % sum;
  });
  for (size_t i = 0; i < static_cast<size_t>(left); ++i) ++shares[order[i]];
  return shares;
}

// A node's CPUs in the order in which threads take them: each core's first, each core's second, and so on.
std::vector<int> cpus_in_order(const Node& node) {
  std::vector<int> cpus;
  for (size_t rank = 0; true; ++rank) {
    const size_t before = cpus.size();
    for (const Core& core : node.cores) {
      if (rank < core.cpus.size()) cpus.push_back(core.cpus[rank]);
    }
    if (cpus.size() == before) return cpus;
  }
}

}  // namespace

int Placement::num_threads() const {
  size_t count = 0;
  for (const NodeThreads& threads : nodes) count += threads.cpus.size();
  return static_cast<int>(count);
}

int Placement::num_unpinned() const {
  int64_t count = 0;
  for (const NodeThreads& threads : nodes)
    count += std::count(threads.cpus.begin(), threads.cpus.end(), kAnyCpu);
  return static_cast<int>(count);
}

Placement place_threads(const Topology& topology, int num_threads) {
  if (num_threads < 1) {
    throw std::invalid_argument("num_threads is " + std::to_string(num_threads) + "; expected 1 or more");
  }
  std::vector<std::vector<int>> cpus;
  std::vector<int> num_cores, num_siblings, num_cpus;
  for (const Node& node : topology.nodes) {
    cpus.push_back(cpus_in_order(node));
    num_cpus.push_back(static_cast<int>(cpus.back().size()));
    num_cores.push_back(static_cast<int>(node.cores.size()));
    num_siblings.push_back(num_cpus.back() - num_cores.back());
  }
  const int on_cores = std::min(num_threads, topology.num_cores());
  const int on_siblings = std::min(num_threads - on_cores, topology.num_cpus() - topology.num_cores());
  const int floating = num_threads - on_cores - on_siblings;
  if (topology.num_cpus() == 0)
    return {{{kUnknownNode, std::vector<int>(static_cast<size_t>(floating), kAnyCpu)}}};

  const std::vector<int> core_shares = apportion(on_cores, num_cores);
  const std::vector<int> sibling_shares = apportion(on_siblings, num_siblings);
  const std::vector<int> floating_shares = apportion(floating, num_cpus);
  Placement placement;
  for (size_t i = 0; i < topology.nodes.size(); ++i) {
    const int num_pinned = core_shares[i] + sibling_shares[i];
    NodeThreads threads{topology.nodes[i].index, {cpus[i].begin(), cpus[i].begin() + num_pinned}};
    threads.cpus.insert(threads.cpus.end(), static_cast<size_t>(floating_shares[i]), kAnyCpu);
    if (!threads.cpus.empty()) placement.nodes.push_back(std::move(threads));
  }
  return placement;
}

}  // namespace ballast
