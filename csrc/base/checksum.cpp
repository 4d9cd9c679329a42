#include "base/checksum.h"

namespace ballast {
namespace {

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * kOdd;
  return hash ^ hash >> 32;
}

}  // namespace

// Fletcher's sums of 64-bit words in eight lanes: sums, and sums of sums, which depend on the order.
uint64_t checksum(const void* data, size_t num_bytes) {
  constexpr size_t kLanes = 8;
  const uint64_t* words = static_cast<const uint64_t*>(data);
  const size_t count = num_bytes / sizeof(uint64_t);
  uint64_t sums[kLanes] = {}, sums_of_sums[kLanes] = {};
  size_t word = 0;
  for (; word + kLanes <= count; word += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += words[word + lane];
      sums_of_sums[lane] += sums[lane];
    }
  }
  uint64_t hash = count;
  for (; word < count; ++word) hash = mixed(hash, words[word]);
  for (size_t lane = 0; lane < kLanes; ++lane) hash = mixed(mixed(hash, sums[lane]), sums_of_sums[lane]);
  return hash;
}

}  // namespace ballast
