// How kernels read weights and how far ahead they prefetch them, by CPU model.
#pragma once

#include <cstdint>

namespace ballast {

// The cache of a core to prefetch into; kNone: no prefetch.
enum class PrefetchTarget : uint8_t { kFirstCache, kSecondCache, kNone };

struct Prefetching {
  PrefetchTarget to;
  int64_t bytes_ahead;
  // with few tokens, read panels one after the other instead of two together
  bool in_one_stream;
};

// The fastest settings on this CPU (benchmarks/results/prefetching.jsonl). An Intel core tracks 16
// outstanding lines for its first-level cache, and 48 for its second-level cache.
Prefetching prefetching_of_this_chip();

}  // namespace ballast
