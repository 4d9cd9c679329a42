// Multiplies panels of grid points with few tokens: points are looked up into registers.
#pragma once

#include "cpu/avx2/simd.h"
#include "cpu/panels/accumulate_tokens-inl.h"
#include "cpu/panels/decode_points-inl.h"
#include "cpu/panels/decoded_panels-inl.h"
#include "cpu/panels/packed_panels-inl.h"
#include "cpu/panels/prefetch-inl.h"

namespace ballast {
namespace {

// A panel whose points are looked up when they are multiplied.
template <const QuantLayout& kLayout>
struct PointPanel {
  PackedPanels<kLayout, kPanelVectors> packed;
};

struct PointBlock {
  int64_t begin;  // group
  const uint8_t* record;
};

template <const QuantLayout& kLayout>
struct PointGroup {
  static constexpr int kLargestCode = kLargestPoint;

  const uint8_t* codes;
  Bytes signs[kPanelVectors];
  Floats scale[kPanelVectors][kLayout.subs_per_group()];
  const uint8_t* prefetch_from;
  PrefetchTarget to;
};

template <const QuantLayout& kLayout>
BALLAST_INLINE PointBlock block_at(const PointPanel<kLayout>& panel, int64_t begin) {
  return {begin, panel.packed.first + (begin >> kSuperGroupsLog2) * kLayout.scale_stride()};
}

template <const QuantLayout& kLayout>
BALLAST_INLINE PointGroup<kLayout> group_at(const PointPanel<kLayout>& panel, const PointBlock& block,
                                            int64_t index) {
  PointGroup<kLayout> group;
  group.codes = only_address(panel.packed.codes + index * kLayout.group_bytes());
  group.prefetch_from = prefetch_address<kLayout>(panel.packed.own_prefetch, index);
  group.to = panel.packed.own_prefetch.to;
#pragma GCC unroll 4
  for (int row_vector = 0; row_vector < kPanelVectors; ++row_vector) {
    group.signs[row_vector] = point_signs<kLayout>(group.codes, row_vector);
    for (int sub = 0; sub < kLayout.subs_per_group(); ++sub)
      group.scale[row_vector][sub] =
          point_scale<kLayout>(block.record, group.codes, row_vector, index - block.begin, sub);
  }
  return group;
}

template <int kQuad, const QuantLayout& kLayout>
BALLAST_INLINE void prefetch_quads(const PointGroup<kLayout>& group) {
  prefetch_group_lines<kLayout, 1, kQuad>(group.prefetch_from, 0, group.to);
}
// Applies the signs to the activations, which takes fewer instructions than applying them to the weights.
template <int kQuad, const QuantLayout& kLayout>
BALLAST_INLINE auto quad_of(const PointGroup<kLayout>& group, int row_vector) {
  if constexpr (kLayout.grid().is_shifted()) {
    return decode_point_quad<kLayout, kQuad>(group.codes, row_vector, group.signs[row_vector]);
  } else {
    const Bytes negative = negative_where<kQuad / 2, kQuad % 2>(group.signs[row_vector]);
    return SignedCodes{point_quad<kLayout, kQuad>(group.codes, row_vector), or_bytes(negative, bytes_of(1))};
  }
}
template <const QuantLayout& kLayout>
BALLAST_INLINE Floats scale_of(const PointGroup<kLayout>& group, int row_vector, int sub) {
  return group.scale[row_vector][sub];
}

// Adds in the same order as with decoded panels.
template <const QuantLayout& kLayout, int kBytes>
void multiply_in_registers(const PanelRun& run, int64_t index, const void* const* tokens, int64_t num_tokens,
                           const PanelProducts& out) {
  const PointPanel<kLayout> panel{{run, index, 1}};
  NextPrefetch nothing{};
  multiply_rest<decoded_layout<kLayout>(), kPanelVectors, kMostInRegisters<kBytes>, kBytes>(
      panel, {0, run.cols / kGroupCols}, run.blocks_per_scale, nothing, tokens, num_tokens,
      {products_of(out, index), out.panel_stride});
}

}  // namespace
}  // namespace ballast
