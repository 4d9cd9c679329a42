// Multiplies panels of grid points with few tokens on CPUs that permute bytes: points are looked up into
// registers. With more tokens, look-ups are a small fraction of the time, and decoded panels are used.
#pragma once

#include "cpu/avx512/ordered_points-inl.h"
#include "cpu/avx512/points-inl.h"
#include "cpu/panels/accumulate_sub_blocks-inl.h"
#include "cpu/panels/decode_points-inl.h"
#include "cpu/panels/decoded_panels-inl.h"
#include "cpu/panels/packed_panels-inl.h"
#include "cpu/panels/prefetch-inl.h"

namespace ballast {
namespace {

template <const QuantLayout& kLayout>
struct PointGroup {
  static constexpr int kLargestCode = kLargestPoint;

  __m512i quads[kGroupQuads];
  Floats scale[kLayout.subs_per_group()];
};

template <int kQuad, const QuantLayout& kLayout>
BALLAST_INLINE void prefetch_quads(const PointGroup<kLayout>&) {}
template <int kQuad, const QuantLayout& kLayout>
BALLAST_INLINE Bytes quad_of(const PointGroup<kLayout>& group, int) {
  return group.quads[kQuad];
}
template <const QuantLayout& kLayout>
BALLAST_INLINE Floats scale_of(const PointGroup<kLayout>& group, int, int sub) {
  return group.scale[sub];
}

// The values of point_scale. If the four bits of n are the top bits of the row's signs, one product computes
// 128 * (2 n + 1) from them.
template <const QuantLayout& kLayout>
BALLAST_INLINE Floats group_scale(const uint8_t* record, const uint8_t* group, int64_t index, int sub) {
  if constexpr (kLayout.scales == Scales::kOddInCodes && !kLayout.grid().is_shifted()) {
    constexpr float kUnit = 1.0f / (128 << kLayout.grid().scale_log2);
    const __m512i tops = and_bytes(load_bytes(group + kLayout.sign_plane()), bytes_of(0x80));
    const Ints odd = _mm512_dpbusd_epi32(broadcast_int(128), tops, broadcast_int(0x10080402));
    return multiply(multiply(halves_to_floats(record), broadcast_float(kUnit)), to_floats(odd));
  }
  return point_scale<kLayout>(record, group, 0, index, sub);
}

// Whether columns are multiplied in the order of ColumnOrder, for that many bytes of activations per column.
// With two scales per group it saves less than reordering costs.
template <const QuantLayout& kLayout>
constexpr bool multiplies_ordered(int num_bytes) {
  return !kLayout.grid().is_shifted() && (kLayout.subs_per_group() == 1 || num_bytes <= 2);
}

// Adds in the same order as multiply_tokens with decoded panels.
template <const QuantLayout& kLayout, int kTokens, int kBytes>
BALLAST_VBMI BALLAST_NOINLINE void multiply_points(const PanelRun& run, int64_t index,
                                                   const void* const* tokens, const PanelProducts& out) {
  const PackedPanels<kLayout, 1> panels(run, index, 1);
  const ActivationBlock<kBytes>* blocks[kTokens];
  Floats totals[kTokens];
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
    blocks[token] = static_cast<const ActivationBlock<kBytes>*>(tokens[token]);
    totals[token] = zero_floats();
  }
  constexpr bool kIsOrdered = multiplies_ordered<kLayout>(kTokens * kBytes);
  ActivationBlock<kBytes> ordered[kTokens][kIsOrdered ? kSuperGroups : 1];
  const uint8_t* codes = panels.codes;
  const uint8_t* record = panels.first;
  for (int64_t begin = 0; begin < run.cols / kGroupCols; begin += kSuperGroups) {
    Floats sums[kTokens][1];
    const ActivationBlock<kBytes>* multiplied[kTokens];  // of the super-block
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) {
      sums[token][0] = zero_floats();
      multiplied[token] = kIsOrdered ? ordered[token] : blocks[token] + begin;
      if constexpr (kIsOrdered) order_columns<kLayout>(blocks[token] + begin, ordered[token]);
    }
    for (int64_t at = begin; at < begin + kSuperGroups; ++at, codes += kLayout.group_bytes()) {
      prefetch(prefetch_address<kLayout>(panels.own_prefetch, at), bytes_per_group<kLayout>(),
               panels.own_prefetch.to);
      PointGroup<kLayout> group;
      if constexpr (kIsOrdered) {
        look_up_group<kLayout>(codes, group.quads);
      } else {
        permute_group<kLayout>(codes, _mm512_load_si512(kPointTables<kLayout.table>.steps), group.quads);
      }
      for (int sub = 0; sub < kLayout.subs_per_group(); ++sub)
        group.scale[sub] = group_scale<kLayout>(record, codes, at - begin, sub);
      add_sub_block<decoded_layout<kLayout>(), 1, kTokens, 0>(group, multiplied, at - begin, sums);
      if constexpr (kLayout.subs_per_group() == 2)
        add_sub_block<decoded_layout<kLayout>(), 1, kTokens, 1>(group, multiplied, at - begin, sums);
    }
    record += kLayout.scale_stride();
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token)
      totals[token] =
          multiply_add(sums[token][0], broadcast_float(blocks[token][begin].scale), totals[token]);
  }
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token)
    store_floats(products_of(out, index) + token * kPanelRows, totals[token]);
}

template <const QuantLayout& kLayout, int kBytes>
void multiply_in_registers(const PanelRun& run, int64_t index, const void* const* tokens, int64_t num_tokens,
                           const PanelProducts& out) {
  switch (num_tokens) {
    case 1:
      return multiply_points<kLayout, 1, kBytes>(run, index, tokens, out);
    case 2:
      return multiply_points<kLayout, 2, kBytes>(run, index, tokens, out);
    case 3:
      return multiply_points<kLayout, 3, kBytes>(run, index, tokens, out);
    default:
      return multiply_points<kLayout, kMostInRegisters<kBytes>, kBytes>(run, index, tokens, out);
  }
}

}  // namespace
}  // namespace ballast
