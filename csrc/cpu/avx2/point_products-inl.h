// Products of few tokens with panels of points: quads are looked up into registers and multiplied from there.
#pragma once

#include "cpu/avx2/simd.h"
#include "cpu/panels/accumulate_tokens-inl.h"
#include "cpu/panels/decode_points-inl.h"
#include "cpu/panels/decoded_panels-inl.h"
#include "cpu/panels/packed_panels-inl.h"
#include "cpu/panels/prefetch-inl.h"

namespace ballast {
namespace {

// A panel whose quads are looked up as they are multiplied.
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
  const uint8_t* asked;
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
  group.asked = asked_at<kLayout>(panel.packed.asking, index);
  group.to = panel.packed.asking.to;
#pragma GCC unroll 4
  for (int part = 0; part < kPanelVectors; ++part) {
    group.signs[part] = point_signs<kLayout>(group.codes, part);
    for (int sub = 0; sub < kLayout.subs_per_group(); ++sub)
      group.scale[part][sub] =
          point_scale<kLayout>(block.record, group.codes, part, index - block.begin, sub);
  }
  return group;
}

template <int kQuad, const QuantLayout& kLayout>
BALLAST_INLINE void ask_ahead(const PointGroup<kLayout>& group) {
  prefetch_part<kLayout, 1, kQuad>(group.asked, 0, group.to);
}
// Signs are given to the activations, which takes fewer instructions than to give them to the weights.
template <int kQuad, const QuantLayout& kLayout>
BALLAST_INLINE auto quad_of(const PointGroup<kLayout>& group, int part) {
  if constexpr (kLayout.grid().is_shifted()) {
    return decode_point_quad<kLayout, kQuad>(group.codes, part, group.signs[part]);
  } else {
    const Bytes negative = negative_where<kQuad / 2, kQuad % 2>(group.signs[part]);
    return SignedCodes{point_quad<kLayout, kQuad>(group.codes, part), or_bytes(negative, bytes_of(1))};
  }
}
template <const QuantLayout& kLayout>
BALLAST_INLINE Floats scale_of(const PointGroup<kLayout>& group, int part, int sub) {
  return group.scale[part][sub];
}

// In the order of sums that pieces have.
template <const QuantLayout& kLayout, int kBytes>
void multiply_in_registers(const PanelRun& run, int64_t index, const void* const* tokens, int64_t num_tokens,
                           const PanelProducts& out) {
  const PointPanel<kLayout> panel{{run, index, 1}};
  Ahead nothing{};
  multiply_rest<decoded_layout<kLayout>(), kPanelVectors, kMostInRegisters<kBytes>, kBytes>(
      panel, {0, run.cols / kGroupCols}, run.blocks_per_scale, nothing, tokens, num_tokens,
      {products_of(out, index), out.panel_stride});
}

}  // namespace
}  // namespace ballast
