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

// Prefetches the beginning of a panel that no earlier panel prefetches.
BALLAST_INLINE void prefetch_begin(const PanelRun& run, int64_t panel) {
  const int64_t bytes_ahead = run.prefetching.bytes_ahead;
  prefetch(panel_of(run, panel), smaller(run.panel_bytes, bytes_ahead), run.prefetching.to);
}

// The bytes of a panel per group: the group and its fraction of the scales.
template <const QuantLayout& kLayout>
constexpr int bytes_per_group() {
  return kLayout.group_bytes() + kLayout.scale_stride() / (kLayout.is_flat() ? 1 : kSuperGroups);
}

// Prefetches while a panel is read: the bytes `bytes_ahead` further on, and near the end the next weights.
// `beyond` is relative to the beginning of the present panel.
struct PanelPrefetch {
  uintptr_t here;    // address for distances below `end` from the beginning of the panel
  uintptr_t beyond;  // address for larger distances
  int64_t end;
  int64_t bytes_ahead;
  PrefetchTarget to;
};

// For panels that were not prefetched. If the next weights are unknown, it prefetches the beginning of the
// panel again, which costs less than a branch.
BALLAST_INLINE PanelPrefetch prefetch_ahead(const PanelRun& run, const uint8_t* first, const uint8_t* next) {
  const uintptr_t here = reinterpret_cast<uintptr_t>(first);
  const uintptr_t after = next == nullptr ? here : reinterpret_cast<uintptr_t>(next);
  return {here, after - static_cast<uintptr_t>(run.panel_bytes), run.panel_bytes, run.prefetching.bytes_ahead,
          run.prefetching.to};
}

// For panels that are in the caches.
BALLAST_INLINE PanelPrefetch no_prefetch() { return {0, 0, 0, 0, PrefetchTarget::kNone}; }

// The address to prefetch while group `index` is multiplied.
template <const QuantLayout& kLayout>
BALLAST_INLINE const uint8_t* prefetch_address(const PanelPrefetch& own_prefetch, int64_t index) {
  const int64_t distance = index * bytes_per_group<kLayout>() + own_prefetch.bytes_ahead;
  const uintptr_t from = distance < own_prefetch.end ? own_prefetch.here : own_prefetch.beyond;
  return reinterpret_cast<const uint8_t*>(from + static_cast<uintptr_t>(distance));
}

// Prefetches the lines for two of the eight quads of a group. Spread over the group, prefetches keep the
// memory busy.
template <const QuantLayout& kLayout, int kPanels, int kQuad>
BALLAST_INLINE void prefetch_group_lines(const uint8_t* bytes, int64_t panel_bytes, PrefetchTarget to) {
  constexpr int kLines = (bytes_per_group<kLayout>() + 63) / 64;
  constexpr int kBegin = kQuad * kLines / kGroupQuads;
  constexpr int kLinesEnd = (kQuad + 2) * kLines / kGroupQuads;
#pragma GCC unroll 4
  for (int panel = 0; panel < kPanels; ++panel)
    prefetch(bytes + panel * panel_bytes + kBegin * 64, (kLinesEnd - kBegin) * 64, to);
}

// Next weights, which several passes over the same panels prefetch slice by slice.
struct NextPrefetch {
  const uint8_t* next;  // weights that are read after these panels
  int64_t period;       // groups between two slices
  int64_t wait;         // groups until the next slice; 0 or less: never
  PrefetchTarget to;
};

// Prefetches the next slice, of as many panels as are multiplied together, in ascending order.
template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE void prefetch_next_slice(NextPrefetch& next_prefetch) {
  constexpr int kSlice = (kPanels * bytes_per_group<kLayout>() + 63) / 64 * 64;
  prefetch(next_prefetch.next, kSlice, next_prefetch.to);
  next_prefetch.next += kSlice;
  next_prefetch.wait = next_prefetch.period;
}

}  // namespace
}  // namespace ballast
