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
  } else if (to == CacheLevel::kSecond) {
    for (int64_t byte = 0; byte < num_bytes; byte += 64) _mm_prefetch(lines + byte, _MM_HINT_T1);
  }
}

// What asking ahead leaves out of a panel that is the first to be read.
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

// Where memory is asked for what a panel reads later: in itself, or where reading goes on behind it.
struct Asking {
  const uint8_t* here;    // to which a distance from the panel's begin is added,
  const uint8_t* beyond;  // or to this, from `end` on
  int64_t end;
  int64_t ahead;
  CacheLevel to;
};

// For panels that nothing has asked for before. Where nobody knows what follows, their begin is asked for
// again, which costs less than to decide whether to ask.
BALLAST_INLINE Asking asking_ahead(const PanelRun& run, const uint8_t* first, const uint8_t* next) {
  return {first, (next == nullptr ? first : next) - run.panel_bytes, run.panel_bytes,
          run.prefetching.bytes_ahead, run.prefetching.to};
}

// For panels that are in the caches.
BALLAST_INLINE Asking asking_for_nothing() { return {nullptr, nullptr, 0, 0, CacheLevel::kNone}; }

// What to ask for while group `index` is multiplied.
template <const QuantLayout& kLayout>
BALLAST_INLINE const uint8_t* asked_at(const Asking& asking, int64_t index) {
  const int64_t distance = index * share_bytes<kLayout>() + asking.ahead;
  return (distance < asking.end ? asking.here : asking.beyond) + distance;
}

// Asks for the part of a group's share that falls to two quads of eight: asked for all at once, it would
// leave memory with less to do while the rest of the group is multiplied.
template <const QuantLayout& kLayout, int kPanels, int kQuad>
BALLAST_INLINE void prefetch_part(const uint8_t* share, int64_t panel_bytes, CacheLevel to) {
  constexpr int kLines = (share_bytes<kLayout>() + 63) / 64;
  constexpr int kBegin = kQuad * kLines / kGroupQuads;
  constexpr int kLinesEnd = (kQuad + 2) * kLines / kGroupQuads;
#pragma GCC unroll 4
  for (int panel = 0; panel < kPanels; ++panel)
    prefetch(share + panel * panel_bytes + kBegin * 64, (kLinesEnd - kBegin) * 64, to);
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
