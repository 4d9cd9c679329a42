// Decides from a topology which threads run on which CPUs.
#pragma once

#include <vector>

#include "numa/topology.h"

namespace ballast {

constexpr int kAnyCpu = -1;

// One entry a thread; `node` is that of the memory they read. A thread of kAnyCpu is not pinned: its node has
// more threads than CPUs.
struct NodeThreads {
  int node = kUnknownNode;
  std::vector<int> cpus;
};

struct Placement {
  std::vector<NodeThreads> nodes;  // those that have a thread

  int num_threads() const;
  int num_unpinned() const;
};

// Spreads threads over the nodes in proportion to their cores: a core of its own for each, then sibling
// threads, and when every CPU has one, threads that are not pinned. No CPU gets two. Threads on a node whose
// memory may not be used are counted with nodes whose memory they read. Throws std::invalid_argument for
// num_threads below 1.
Placement place_threads(const Topology& topology, int num_threads);

}  // namespace ballast
