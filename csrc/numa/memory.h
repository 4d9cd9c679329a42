// Memory on a node of our choice, and where memory really lies. First touch by the node's own threads is what
// places it; memory policies are asked for as well where the kernel permits them, and never needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/pages.h"
#include "numa/thread_pool.h"

namespace ballast {

// Whether this process may set memory policies; containers commonly may not.
bool mempolicy_available();

// Zeroed memory that the threads of one of the pool's nodes touched first.
class NodePages {
 public:
  // `node` counts the pool's nodes from 0. Throws std::bad_alloc when the system refuses.
  NodePages(ThreadPool& pool, int node, size_t num_bytes);

  uint8_t* data() const { return pages_.data(); }
  size_t size() const { return pages_.size(); }
  // Whether the kernel took the node as a policy too, which also holds for pages that it swaps or migrates.
  bool has_policy() const { return has_policy_; }

 private:
  Pages pages_;
  bool has_policy_;
};

struct AddressRange {
  uintptr_t begin = 0;
  uint64_t num_bytes = 0;
};

using BytesPerNode = std::map<int, int64_t>;

// Resident bytes of `ranges` by node, from the texts of /proc/self/numa_maps and /proc/self/maps (which alone
// tells where a mapping ends). Overlapping ranges count once. A mapping that lies partly in the ranges counts
// by the share of its addresses that does.
BytesPerNode bytes_per_node(const std::string& numa_maps, const std::string& maps,
                            std::vector<AddressRange> ranges);

}  // namespace ballast
