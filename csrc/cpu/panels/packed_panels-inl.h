// Packed panels as a source of weights: a kernel decodes each group when it multiplies it.
#pragma once

#include "cpu/kernels.h"
#include "cpu/panels/decode_codes-inl.h"
#include "cpu/panels/decode_scales-inl.h"
#include "cpu/panels/prefetch-inl.h"
#include "cpu/panels/scaled_codes-inl.h"

namespace ballast {
namespace {

// A range of groups. IndexRange has functions that other objects define too.
struct Groups {
  int64_t begin;
  int64_t end;
};

// Consecutive packed panels, decoded while they are multiplied.
template <const QuantLayout& kLayout, int kVectors>
struct PackedPanels {
  static constexpr int kPanels = kVectors / kPanelVectors;

  PackedPanels(const PanelRun& run, int64_t index, int64_t num_passes)
      : first(panel_of(run, index)),
        panel_bytes(run.panel_bytes),
        codes(first + kLayout.scale_bytes(run.cols)) {
    const uint8_t* const next = index + kPanels < run.count ? panel_of(run, index + kPanels) : run.next;
    const bool prefetches_own = num_passes == 1 || index == 0 || kLayout.is_decoded_first();
    own_prefetch = prefetches_own ? prefetch_ahead(run, first, next) : no_prefetch();
    // A single pass has no time to prefetch the next weights.
    if (num_passes > 1 && next != nullptr && !kLayout.is_decoded_first())
      next_prefetch = {next, num_passes, num_passes, run.prefetching.to};
  }

  const uint8_t* const first;
  const int64_t panel_bytes;
  const uint8_t* const codes;
  PanelPrefetch own_prefetch;
  NextPrefetch next_prefetch{};
};

template <int kVectors>
struct PackedBlock {
  int64_t begin;  // group
  CommonScales scales[kVectors];
};

// The largest code, or magnitude of a signed code, as it is multiplied.
constexpr int largest_code(const QuantLayout& layout) {
  return is_signed(layout) ? 128 : layout.is_wide() ? kLargestWideCode : (1 << layout.bits) - 1;
}

template <const QuantLayout& kLayout, int kVectors>
struct PackedGroup {
  static constexpr int kLargestCode = largest_code(kLayout);

  const uint8_t* codes;
  int64_t panel_bytes;
  GroupScales<kLayout> scales[kVectors];
  const uint8_t* prefetch_from;
  PrefetchTarget to;
};

// The data that group_at needs for the groups from `begin`, at most to the end of a super-block.
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE PackedBlock<kVectors> block_at(const PackedPanels<kLayout, kVectors>& panels, int64_t begin) {
  PackedBlock<kVectors> block;
  block.begin = begin;
#pragma GCC unroll 4
  for (int vector = 0; vector < kVectors; ++vector)
    block.scales[vector] = common_scales<kLayout>(panels.first + panel_index(vector) * panels.panel_bytes,
                                                  row_vector_of(vector), begin);
  return block;
}

template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE PackedGroup<kLayout, kVectors> group_at(const PackedPanels<kLayout, kVectors>& panels,
                                                       const PackedBlock<kVectors>& block, int64_t index) {
  PackedGroup<kLayout, kVectors> group;
  group.codes = panels.codes + index * kLayout.group_bytes();
  group.panel_bytes = panels.panel_bytes;
  group.prefetch_from = prefetch_address<kLayout>(panels.own_prefetch, index);
  group.to = panels.own_prefetch.to;
#pragma GCC unroll 4
  for (int vector = 0; vector < kVectors; ++vector)
    decode_scales<kLayout>(block.scales[vector], index - block.begin, group.scales[vector]);
  return group;
}

template <int kQuad, const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE void prefetch_quads(const PackedGroup<kLayout, kVectors>& group) {
  prefetch_group_lines<kLayout, kVectors / kPanelVectors, kQuad>(group.prefetch_from, group.panel_bytes,
                                                                 group.to);
}
template <int kQuad, const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Bytes quad_of(const PackedGroup<kLayout, kVectors>& group, int vector) {
  return decode_quad<kLayout, kQuad>(group.codes + panel_index(vector) * group.panel_bytes +
                                     row_vector_of(vector) * kVectorBytes);
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Floats scale_of(const PackedGroup<kLayout, kVectors>& group, int vector, int sub) {
  return group.scales[vector].scale[sub];
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Floats minimum_of(const PackedGroup<kLayout, kVectors>& group, int vector, int sub) {
  return group.scales[vector].minimum[sub];
}

// For a super-block that adds up in integers: its scale, its minimum, and the scale bytes of each group
// (pair_of_scales).
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Floats block_scale(const PackedPanels<kLayout, kVectors>&, const PackedBlock<kVectors>& block,
                                  int vector) {
  return block.scales[vector].scale;
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Floats block_minimum(const PackedPanels<kLayout, kVectors>&,
                                    const PackedBlock<kVectors>& block, int vector) {
  return block.scales[vector].minimum;
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Bytes pair_at(const PackedPanels<kLayout, kVectors>&, const PackedBlock<kVectors>& block,
                             int64_t index, int vector) {
  return pair_of_scales(block.scales[vector].first +
                        (index - block.begin) * kLayout.subs_per_group() * kPanelRows);
}

// A group whose codes are scaled while they are decoded.
template <const QuantLayout& kLayout, int kVectors>
struct ScaledGroup {
  static constexpr int kLargestCode = largest_scaled_code(kLayout);

  PackedGroup<kLayout, kVectors> packed;
  CodeFactors<kLayout> factors[kVectors];
};

template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE ScaledGroup<kLayout, kVectors> with_factors(const PackedGroup<kLayout, kVectors>& packed) {
  ScaledGroup<kLayout, kVectors> group;
  group.packed = packed;
#pragma GCC unroll 4
  for (int vector = 0; vector < kVectors; ++vector)
    decode_factors<kLayout>(packed.scales[vector].bytes, group.factors[vector]);
  return group;
}
template <int kQuad, const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE void prefetch_quads(const ScaledGroup<kLayout, kVectors>& group) {
  prefetch_quads<kQuad>(group.packed);
}
template <int kQuad, const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Bytes quad_of(const ScaledGroup<kLayout, kVectors>& group, int vector) {
  return scale_codes<kLayout, kQuad>(quad_of<kQuad>(group.packed, vector), group.factors[vector]);
}

}  // namespace
}  // namespace ballast
