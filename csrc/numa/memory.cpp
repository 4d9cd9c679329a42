#include "numa/memory.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/words.h"

namespace ballast {
namespace {

// Called directly: libnuma would be a whole library for a single system call.
bool set_policy(void* begin, size_t num_bytes, int mode, const std::vector<unsigned long>& nodes) {
  const unsigned long num_bits = nodes.size() * sizeof(unsigned long) * 8;
  // The kernel counts the mask's bits from 1.
  return syscall(SYS_mbind, begin, num_bytes, mode, nodes.empty() ? nullptr : nodes.data(),
                 nodes.empty() ? 0 : num_bits + 1, 0) == 0;
}

std::vector<AddressRange> merged(std::vector<AddressRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const AddressRange& a, const AddressRange& b) { return a.begin < b.begin; });
  std::vector<AddressRange> apart;
  for (const AddressRange& range : ranges) {
    if (!apart.empty() && range.begin <= apart.back().begin + apart.back().num_bytes) {
      const uint64_t end =
          std::max(apart.back().begin + apart.back().num_bytes, range.begin + range.num_bytes);
      apart.back().num_bytes = end - apart.back().begin;
    } else {
      apart.push_back(range);
    }
  }
  return apart;
}

uint64_t overlap_bytes(uint64_t begin, uint64_t end, const std::vector<AddressRange>& ranges) {
  uint64_t total = 0;
  for (const AddressRange& range : ranges) {
    const uint64_t from = std::max<uint64_t>(begin, range.begin);
    const uint64_t to = std::min<uint64_t>(end, range.begin + range.num_bytes);
    if (from < to) total += to - from;
  }
  return total;
}

// Begin → end of every mapping.
std::map<uint64_t, uint64_t> parse_maps(const std::string& maps) {
  std::map<uint64_t, uint64_t> ends;
  for (const std::string_view line : split(maps, "\n")) {
    const std::string_view addresses = line.substr(0, line.find(' '));
    const size_t dash = addresses.find('-');
    if (dash == std::string_view::npos) continue;
    const auto begin = to_number<uint64_t>(addresses.substr(0, dash), 16);
    const auto end = to_number<uint64_t>(addresses.substr(dash + 1), 16);
    if (begin && end) ends[*begin] = *end;
  }
  return ends;
}

}  // namespace

bool mempolicy_available() {
  // A separate page, so that setting the default policy on it affects no other memory.
  const Pages page(page_bytes());
  return set_policy(page.data(), page.size(), MPOL_DEFAULT, {});
}

bool prefer_node(const Pages& pages, int node) {
  if (pages.size() == 0 || node < 0) return false;
  constexpr size_t kWordBits = sizeof(unsigned long) * 8;
  std::vector<unsigned long> nodes(static_cast<size_t>(node) / kWordBits + 1, 0);
  nodes.back() = 1UL << (static_cast<size_t>(node) % kWordBits);
  // A policy for a part of a huge page would leave it without one.
  return set_policy(pages.data(), pages.mapped_size(), MPOL_PREFERRED, nodes);
}

BytesPerNode bytes_per_node(const std::string& numa_maps, const std::string& maps,
                            std::vector<AddressRange> ranges) {
  const std::map<uint64_t, uint64_t> ends = parse_maps(maps);
  ranges = merged(std::move(ranges));
  BytesPerNode bytes;
  for (const std::string_view line : split(numa_maps, "\n")) {
    const auto begin = to_number<uint64_t>(line.substr(0, line.find(' ')), 16);
    if (!begin) continue;
    const auto end = ends.find(*begin);
    const uint64_t inside = end == ends.end() ? 0 : overlap_bytes(*begin, end->second, ranges);
    if (inside == 0) continue;
    std::map<int, int64_t> num_pages;
    int64_t bytes_a_page = static_cast<int64_t>(page_bytes());
    for (const std::string_view word : split(line, " ")) {
      const size_t equals = word.find('=');
      if (equals == std::string_view::npos) continue;
      const std::string_view key = word.substr(0, equals);
      // A path may hold an equals sign: only what is a number counts.
      const auto value = to_number<int64_t>(word.substr(equals + 1));
      if (!value) continue;
      if (key == "kernelpagesize_kB") {
        bytes_a_page = *value * 1024;
      } else if (key.substr(0, 1) == "N") {
        if (const auto node = to_number<int>(key.substr(1))) num_pages[*node] += *value;
      }
    }
    const double share = static_cast<double>(inside) / static_cast<double>(end->second - *begin);
    for (const auto& [node, count] : num_pages) {
      bytes[node] += static_cast<int64_t>(static_cast<double>(count * bytes_a_page) * share);
    }
  }
  return bytes;
}

}  // namespace ballast
