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

// The settings that read fastest on this chip, as measured
// (docs/decisions/0005-weights-are-packed-into-panels.md). An Intel core keeps track of 16 lines on their way
// to its first cache, and of 48 to its second.
Prefetching prefetching_of_this_chip();

}  // namespace ballast
