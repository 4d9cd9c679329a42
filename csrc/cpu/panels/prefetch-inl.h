// Prefetches the panels that kernels read, and the weights that they read next.
#pragma once

#include "cpu/kernels.h"
#include "cpu/shared/integers-inl.h"

namespace ballast {
namespace {

BALLAST_INLINE void prefetch(const uint8_t* from, int64_t num_bytes, PrefetchTarget to) {
  const char* const lines = reinterpret_cast<const char*>(from);
  if (to == PrefetchTarget::kFirstCache) {
    for (int64_t byte = 0; byte < num_bytes; byte += 64) _mm_prefetch(lines + byte, _MM_HINT_T0);
  } else if (to == PrefetchTarget::kSecondCache) {
    for (int64_t byte = 0; byte < num_bytes; byte += 64) _mm_prefetch(lines + byte, _MM_HINT_T1);
  }
}

// Prefetches the begin of a run's panel, where no panel before it does.
BALLAST_INLINE void prefetch_begin(const PanelRun& run, int64_t panel) {
  const int64_t ahead = run.prefetching.bytes_ahead;
  prefetch(panel_of(run, panel), smaller(run.panel_bytes, ahead), run.prefetching.to);
}

// A panel's bytes over its groups: the group itself and as much of the scales as falls to it.
template <const QuantLayout& kLayout>
constexpr int share_bytes() {
  return kLayout.group_bytes() + kLayout.scale_stride() / (kLayout.is_flat() ? 1 : kSuperGroups);
}

// What is asked for while a panel is read: its own bytes, `ahead` of those being read, and near its end the
// first bytes of whatever is read next. Addresses, as what is `beyond` counts from the present panel's begin.
struct Asking {
  uintptr_t here;    // of the byte at a distance below `end` from the panel's begin
  uintptr_t beyond;  // of that at a larger distance
  int64_t end;
  int64_t ahead;
  PrefetchTarget to;
};

// For panels that nothing has asked for before. Where nobody knows what follows, their begin is asked for
// again, which costs less than to decide whether to ask.
BALLAST_INLINE Asking asking_ahead(const PanelRun& run, const uint8_t* first, const uint8_t* next) {
  const uintptr_t here = reinterpret_cast<uintptr_t>(first);
  const uintptr_t after = next == nullptr ? here : reinterpret_cast<uintptr_t>(next);
  return {here, after - static_cast<uintptr_t>(run.panel_bytes), run.panel_bytes, run.prefetching.bytes_ahead,
          run.prefetching.to};
}

// For panels that are in the caches.
BALLAST_INLINE Asking asking_for_nothing() { return {0, 0, 0, 0, PrefetchTarget::kNone}; }

// What to ask for while group `index` is multiplied.
template <const QuantLayout& kLayout>
BALLAST_INLINE const uint8_t* asked_at(const Asking& asking, int64_t index) {
  const int64_t distance = index * share_bytes<kLayout>() + asking.ahead;
  const uintptr_t from = distance < asking.end ? asking.here : asking.beyond;
  return reinterpret_cast<const uint8_t*>(from + static_cast<uintptr_t>(distance));
}

// Asks for the part of a group's share that falls to two quads of eight: asked for all at once, it would
// leave memory with less to do while the rest of the group is multiplied.
template <const QuantLayout& kLayout, int kPanels, int kQuad>
BALLAST_INLINE void prefetch_part(const uint8_t* share, int64_t panel_bytes, PrefetchTarget to) {
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
  PrefetchTarget to;
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
