// Places memory on a chosen node, and reports where memory really lies. First touch by the node's own threads
// places it; memory policies are set as well where the kernel permits them, but never needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/pages.h"

namespace ballast {

// Whether this process may set memory policies; containers commonly may not.
bool mempolicy_available();

// Asks that pages go to the kernel's node `node`, also those that it swaps or migrates. Returns whether it
// will; where it does not, the thread that touches a page first places it all the same.
bool prefer_node(const Pages& pages, int node);

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
