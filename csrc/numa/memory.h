// Places memory on a chosen node, and reports the actual location of memory. First touch by the node's
// threads places it; memory policies are also set if the kernel permits them, but are not required.
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

// Requests that the kernel places pages on its node `node`, also after swapping or migration. Returns whether
// the kernel accepts; if not, the first thread that touches a page still places it.
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
