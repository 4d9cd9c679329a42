// Decodes groups of panels whose codes are the points of a grid, on the names of an instruction set's simd.h.
// Included by panel-inl.h, with internal linkage as there.
#pragma once

#include "cpu/grid_layout.h"

namespace ballast {
namespace {

// The largest magnitude of a weight, or below: 43 and 62.
constexpr int kLargestPoint = 63;

// A point's weights side by side, as they are looked up: magnitudes or, where weights are shifted, eighths of
// those that are shifted up, 128 added.
template <int kWeights>
struct PointOf {
  using Type = uint64_t;
};
template <>
struct PointOf<4> {
  using Type = uint32_t;
};

template <CodeTable kTable>
struct PointBytes {
  static constexpr Grid kGrid = grid_of(kTable);
  using Point = typename PointOf<kGrid.weights>::Type;

  alignas(64) Point points[1 << kGrid.index_bits];

  constexpr PointBytes() : points{} {
    for (int index = 0; index < 1 << kGrid.index_bits; ++index) {
      for (int i = 0; i < kGrid.weights; ++i) {
        const int number = kGrid.points[index] >> i * kGrid.level_bits() & ((1 << kGrid.level_bits()) - 1);
        const int level = kGrid.levels[number];
        const int byte = kGrid.is_shifted() ? 8 * level + 1 + 128 : level;
        points[index] |= static_cast<Point>(byte) << 8 * i;
      }
    }
  }
};

template <CodeTable kTable>
static constexpr PointBytes<kTable> kPointBytes{};

// A point's weights: without signs, and shifted ones 128 too large.
template <const QuantLayout& kLayout>
BALLAST_INLINE auto weights_at(const uint8_t* group, int row, int point) {
  auto weights = kPointBytes<kLayout.table>.points[point_at<kLayout>(group, row, point)];
  if constexpr (kLayout.grid().is_shifted()) {
    if (is_shifted_down<kLayout>(group, row, point)) weights -= 0x0202020202020202;
  }
  return weights;
}

// Two quads of four rows, from a point of eight weights for each.
struct TwoQuads {
  __m128i first;
  __m128i second;
};
template <const QuantLayout& kLayout>
BALLAST_INLINE TwoQuads four_rows_of_eights(const uint8_t* group, int row, int point) {
  const auto two_rows = [&](int of_row) {
    return _mm_castsi128_ps(
        _mm_set_epi64x(static_cast<int64_t>(weights_at<kLayout>(group, of_row + 1, point)),
                       static_cast<int64_t>(weights_at<kLayout>(group, of_row, point))));
  };
  const __m128 lower = two_rows(row);
  const __m128 upper = two_rows(row + 2);
  return {_mm_castps_si128(_mm_shuffle_ps(lower, upper, 0x88)),
          _mm_castps_si128(_mm_shuffle_ps(lower, upper, 0xdd))};
}

// The same, from two points of four weights.
template <const QuantLayout& kLayout>
BALLAST_INLINE TwoQuads four_rows_of_fours(const uint8_t* group, int row, int point) {
  const auto quad = [&](int of_point) {
    const auto weights = [&](int i) {
      return static_cast<int32_t>(weights_at<kLayout>(group, row + i, of_point));
    };
    return _mm_setr_epi32(weights(0), weights(1), weights(2), weights(3));
  };
  return {quad(point), quad(point + 1)};
}

// Quads 2 kPair and 2 kPair + 1 of a part's rows, a quad every kStride bytes. They are put together in
// registers: loads of vectors from what single weights were stored to would wait for all of those stores.
template <const QuantLayout& kLayout, int kStride, int kPair>
BALLAST_INLINE void decode_two_quads(const uint8_t* group, int part, Bytes signs, uint8_t* out) {
  constexpr int kFours = kVectorRows / 4;
  __m128i first[kFours];
  __m128i second[kFours];
#pragma GCC unroll 4
  for (int i = 0; i < kFours; ++i) {
    const int row = part * kVectorRows + 4 * i;
    TwoQuads quads;
    if constexpr (kLayout.grid().weights == 8)
      quads = four_rows_of_eights<kLayout>(group, row, kPair);
    else
      quads = four_rows_of_fours<kLayout>(group, row, 2 * kPair);
    first[i] = quads.first;
    second[i] = quads.second;
  }
  const auto finish = [&](Bytes quad, Bytes of_signs, int half) {
    if constexpr (kLayout.grid().is_shifted()) return wide_codes(quad);
    return from_signed(half == 0 ? negate_where<kPair, 0>(quad, of_signs)
                                 : negate_where<kPair, 1>(quad, of_signs));
  };
  store_codes(out + 2 * kPair * kStride, finish(join_fours(first), signs, 0));
  store_codes(out + (2 * kPair + 1) * kStride, finish(join_fours(second), signs, 1));
}

// All eight signs of each byte that has seven: the eighth makes their number even.
BALLAST_INLINE Bytes with_eighth_sign(Bytes seven) {
  const Bytes signs = and_bytes(seven, bytes_of(0x7f));
  Bytes count = xor_bytes(signs, shift_right<4>(signs));
  count = xor_bytes(count, shift_right<2>(count));
  count = xor_bytes(count, shift_right<1>(count));
  return or_bytes(signs, shift_left<7>(and_bytes(count, bytes_of(1))));
}

// The codes of a part's rows as they are multiplied, a quad every kStride bytes.
template <const QuantLayout& kLayout, int kStride>
BALLAST_INLINE void decode_points(const uint8_t* group, int part, uint8_t* out) {
  constexpr Grid kGrid = kLayout.grid();
  Bytes signs{};
  if constexpr (!kGrid.is_shifted()) {
    signs = load_bytes(group + kLayout.sign_plane() + part * kPartBytes);
    if constexpr (kGrid.sign_bits == 7) signs = with_eighth_sign(signs);
  }
  decode_two_quads<kLayout, kStride, 0>(group, part, signs, out);
  decode_two_quads<kLayout, kStride, 1>(group, part, signs, out);
  decode_two_quads<kLayout, kStride, 2>(group, part, signs, out);
  decode_two_quads<kLayout, kStride, 3>(group, part, signs, out);
}

#ifndef BALLAST_PERMUTES_POINTS
template <const QuantLayout& kLayout, int kStride>
BALLAST_INLINE bool decode_by_permutes(const uint8_t*, int64_t, uint8_t*) {
  return false;
}
#endif

// The codes of groups that follow each other, as decode_points has those of one.
template <const QuantLayout& kLayout, int kStride>
BALLAST_INLINE void decode_groups(const uint8_t* first, int64_t count, int part, uint8_t* out) {
  if (decode_by_permutes<kLayout, kStride>(first, count, out)) return;
  for (int64_t index = 0; index < count; ++index) {
    decode_points<kLayout, kStride>(first + index * kLayout.group_bytes(), part,
                                    out + index * kGroupQuads * kStride);
  }
}

// n of the scales of a group's sub-blocks, which are 2 n + 1. `index` is the group's in its super-block.
template <const QuantLayout& kLayout>
BALLAST_INLINE Ints sub_scale(const uint8_t* record, const uint8_t* group, int part, int64_t index, int sub) {
  if constexpr (kLayout.scales == Scales::kOddNibbles) {
    constexpr bool kHasTwo = kLayout.subs_per_group() == 2;
    const uint8_t* const bytes = record + 2 * kPanelRows + (kHasTwo ? index : index / 2) * kPanelRows;
    const Ints both = load_int8(bytes + part * kVectorRows);
    return (kHasTwo ? sub : index % 2) == 0 ? low_nibbles(both) : high_nibbles(both);
  } else if constexpr (kLayout.grid().is_shifted()) {
    const Ints nibbles = load_uint16(group + kLayout.high_plane() + part * kVectorRows * 2);
    const auto bit = [&](Ints shifted, int place) { return and_bytes(shifted, broadcast_int(1 << place)); };
    return or_bytes(bit(shift_right_ints<3>(nibbles), 0),
                    or_bytes(bit(shift_right_ints<6>(nibbles), 1), bit(shift_right_ints<9>(nibbles), 2)));
  } else {
    const Ints words = load_bytes(group + kLayout.sign_plane() + part * kPartBytes);
    const Ints tops = and_bytes(shift_right_ints<7>(words), broadcast_int(0x01010101));
    const Ints four = or_bytes(or_bytes(tops, shift_right_ints<7>(tops)),
                               or_bytes(shift_right_ints<14>(tops), shift_right_ints<21>(tops)));
    return and_bytes(four, broadcast_int(15));
  }
}

template <const QuantLayout& kLayout>
BALLAST_INLINE Floats point_scale(const uint8_t* record, const uint8_t* group, int part, int64_t index,
                                  int sub) {
  constexpr float kUnit = 1.0f / (1 << kLayout.grid().scale_log2);
  const Ints odd =
      add_ints(shift_left_ints<1>(sub_scale<kLayout>(record, group, part, index, sub)), broadcast_int(1));
  const Floats scale = multiply(halves_to_floats(record + part * kVectorRows * 2), broadcast_float(kUnit));
  return multiply(scale, to_floats(odd));
}

}  // namespace
}  // namespace ballast
