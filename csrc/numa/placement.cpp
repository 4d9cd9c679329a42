#include "numa/placement.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "numa/split.h"

namespace ballast {
namespace {

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

bool has_memory(const Topology& topology, int index) {
  return std::any_of(topology.nodes.begin(), topology.nodes.end(),
                     [&](const Node& node) { return node.index == index && node.memory_allowed; });
}

// Threads of nodes whose memory may not be used read the memory of other nodes. They are counted with those,
// so that weights are divided only among nodes that can hold them. Where no node's memory is known to be
// allowed, all threads stay where they are.
Placement with_memory(const Topology& topology, Placement placement) {
  const auto middle =
      std::stable_partition(placement.nodes.begin(), placement.nodes.end(),
                            [&](const NodeThreads& threads) { return has_memory(topology, threads.node); });
  std::vector<NodeThreads> near(placement.nodes.begin(), middle);
  if (near.empty() || middle == placement.nodes.end()) return placement;
  std::vector<int> remote_cpus, num_threads;
  for (auto remote = middle; remote != placement.nodes.end(); ++remote)
    remote_cpus.insert(remote_cpus.end(), remote->cpus.begin(), remote->cpus.end());
  for (const NodeThreads& threads : near) num_threads.push_back(static_cast<int>(threads.cpus.size()));
  const std::vector<int64_t> shares = apportion(static_cast<int64_t>(remote_cpus.size()), num_threads);
  auto next = remote_cpus.begin();
  for (size_t i = 0; i < near.size(); next += shares[i], ++i)
    near[i].cpus.insert(near[i].cpus.end(), next, next + shares[i]);
  return {near};
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

  const std::vector<int64_t> core_shares = apportion(on_cores, num_cores);
  const std::vector<int64_t> sibling_shares = apportion(on_siblings, num_siblings);
  const std::vector<int64_t> floating_shares = apportion(floating, num_cpus);
  Placement placement;
  for (size_t i = 0; i < topology.nodes.size(); ++i) {
    const int64_t num_pinned = core_shares[i] + sibling_shares[i];
    NodeThreads threads{topology.nodes[i].index, {cpus[i].begin(), cpus[i].begin() + num_pinned}};
    threads.cpus.insert(threads.cpus.end(), static_cast<size_t>(floating_shares[i]), kAnyCpu);
    if (!threads.cpus.empty()) placement.nodes.push_back(std::move(threads));
  }
  return with_memory(topology, std::move(placement));
}

}  // namespace ballast
