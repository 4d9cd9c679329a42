// How kernels read weights, and ask for them before, which depends on the chip.
#pragma once

#include <cstdint>

namespace ballast {

// A core's caches, the nearest first, into which memory is asked for; or nothing is.
enum class CacheLevel : uint8_t { kFirst, kSecond, kNone };

struct Prefetching {
  CacheLevel to;
  int64_t bytes_ahead;
  // Few tokens go through one panel after the other, rather than through two side by side.
  bool in_one_stream;
};

// What reads fastest on this chip, as measured (docs/decisions/0005-weights-are-packed-into-panels.md). An
// Intel core has room for 16 lines on their way to its first cache and for 48 to its second.
Prefetching prefetching_of_this_chip();

}  // namespace ballast
