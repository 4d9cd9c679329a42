// What kernels ask memory for before they use it: the panels that they read, and what comes after. Included
// by panel-inl.h, with internal linkage as there.
#pragma once

#include "cpu/kernels.h"
#include "cpu/shared/integers-inl.h"

namespace ballast {
namespace {

BALLAST_INLINE void prefetch(const uint8_t* from, int64_t num_bytes, CacheLevel to) {
  const char* const lines = reinterpret_cast<const char*>(from);
  if (to == CacheLevel::kFirst) {
    for (int64_t byte = 0; byte < num_bytes; byte += 64) _mm_prefetch(lines + byte, _MM_HINT_T0);
  } else {
    for (int64_t byte = 0; byte < num_bytes; byte += 64) _mm_prefetch(lines + byte, _MM_HINT_T1);
  }
}

// What own_share leaves out of a panel that is the first to be read.
BALLAST_INLINE void prefetch_begin(const PanelRun& run, int64_t panel) {
  const int64_t ahead = run.prefetching.bytes_ahead;
  prefetch(run[panel], smaller(run.panel_bytes, ahead), run.prefetching.to);
}

// Bytes of a panel by its groups: a group's own and its part of the scales.
template <const QuantLayout& kLayout>
constexpr int share_bytes() {
  return kLayout.group_bytes() +
         kLayout.scale_stride() / (kLayout.scales == Scales::kFlat ? 1 : kSuperGroups);
}

// A share of each of some panels that lie one behind the other.
struct Share {
  const uint8_t* from;  // of the first panel; null for nothing
  int64_t panel_bytes;
  CacheLevel to;
};

// What to ask for while group `index` of panels is multiplied whose bytes nothing has asked for before.
template <const QuantLayout& kLayout>
BALLAST_INLINE Share own_share(const PanelRun& run, const uint8_t* first, int64_t index,
                               const uint8_t* next) {
  const int64_t ahead = index * share_bytes<kLayout>() + run.prefetching.bytes_ahead;
  const uint8_t* from = first + ahead;
  if (ahead >= run.panel_bytes) from = next == nullptr ? nullptr : next + (ahead - run.panel_bytes);
  return {from, run.panel_bytes, run.prefetching.to};
}

// Asks for the part of the share that falls to two quads of eight: asked for all at once, it would leave
// memory with less to do while the rest of the group is multiplied.
template <const QuantLayout& kLayout, int kPanels, int kQuad>
BALLAST_INLINE void prefetch_part(const Share& share) {
  constexpr int kLines = (share_bytes<kLayout>() + 63) / 64;
  constexpr int kBegin = kQuad * kLines / kGroupQuads;
  constexpr int kLinesEnd = (kQuad + 2) * kLines / kGroupQuads;
  if (share.from == nullptr) return;
#pragma GCC unroll 4
  for (int panel = 0; panel < kPanels; ++panel)
    prefetch(share.from + panel * share.panel_bytes + kBegin * 64, (kLinesEnd - kBegin) * 64, share.to);
}

// What passes over the same panels, each with other tokens, ask memory for meanwhile.
struct Ahead {
  const uint8_t* next;  // what is read after these panels
  int64_t period;       // groups from one share of that to the next
  int64_t wait;         // groups left until then; never, from 0 on
  CacheLevel to;
};

// The same share of as many panels at once, in ascending order.
template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE void prefetch_share(Ahead& ahead) {
  constexpr int kShare = (kPanels * share_bytes<kLayout>() + 63) / 64 * 64;
  prefetch(ahead.next, kShare, ahead.to);
  ahead.next += kShare;
  ahead.wait = ahead.period;
}

}  // namespace
}  // namespace ballast
