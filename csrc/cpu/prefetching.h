// How kernels read weights and how far ahead they prefetch them, which depends on the chip.
#pragma once

#include <cstdint>

namespace ballast {

// The cache of a core into which lines are asked for; kNone asks for none.
enum class PrefetchTarget : uint8_t { kFirstCache, kSecondCache, kNone };

struct Prefetching {
  PrefetchTarget to;
  int64_t bytes_ahead;
  // With few tokens, panels are read one after the other rather than two side by side.
  bool in_one_stream;
};

// The settings that read fastest on this chip (benchmarks/results/prefetching.jsonl). An Intel core tracks 16
// outstanding lines for its first cache, and 48 for its second.
Prefetching prefetching_of_this_chip();

}  // namespace ballast
