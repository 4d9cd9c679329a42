// Decodes groups whose codes are points of a grid.
#pragma once

#include "cpu/grid_layout.h"

namespace ballast {
namespace {

// A bound of the magnitudes of weights, which are at most 43 and 62.
constexpr int kLargestPoint = 63;

// The weights of a point as adjacent bytes: magnitudes, or for shifted weights eighths of the weight shifted
// up, plus 128.
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

// The weights of a point without signs. Shifted weights are 128 too large.
template <const QuantLayout& kLayout>
BALLAST_INLINE auto weights_at(const uint8_t* group, int row, int point) {
  auto weights = kPointBytes<kLayout.table>.points[point_at<kLayout>(group, row, point)];
  if constexpr (kLayout.grid().is_shifted()) {
    // Without a branch, which would be mispredicted for every second point.
    const uint64_t down = is_shifted_down<kLayout>(group, row, point);
    weights -= 0x0202020202020202 & -down;
  }
  return weights;
}

// Two quads of four rows, from one point of eight weights per row.
struct TwoQuads {
  __m128i first;
  __m128i second;
};
template <const QuantLayout& kLayout>
BALLAST_INLINE __m128 two_rows_of_eights(const uint8_t* group, int row, int point) {
  return _mm_castsi128_ps(_mm_set_epi64x(static_cast<int64_t>(weights_at<kLayout>(group, row + 1, point)),
                                         static_cast<int64_t>(weights_at<kLayout>(group, row, point))));
}
template <const QuantLayout& kLayout>
BALLAST_INLINE TwoQuads four_rows_of_eights(const uint8_t* group, int row, int point) {
  const __m128 lower = two_rows_of_eights<kLayout>(group, row, point);
  const __m128 upper = two_rows_of_eights<kLayout>(group, row + 2, point);
  return {_mm_castps_si128(_mm_shuffle_ps(lower, upper, 0x88)),
          _mm_castps_si128(_mm_shuffle_ps(lower, upper, 0xdd))};
}

// A quad of four rows, from one point of four weights per row.
template <const QuantLayout& kLayout>
BALLAST_INLINE __m128i four_rows_of_fours(const uint8_t* group, int row, int point) {
  return _mm_setr_epi32(static_cast<int32_t>(weights_at<kLayout>(group, row, point)),
                        static_cast<int32_t>(weights_at<kLayout>(group, row + 1, point)),
                        static_cast<int32_t>(weights_at<kLayout>(group, row + 2, point)),
                        static_cast<int32_t>(weights_at<kLayout>(group, row + 3, point)));
}

// Completes the eighth sign of each byte with seven: the number of signs is even.
BALLAST_INLINE Bytes with_eighth_sign(Bytes seven) {
  const Bytes signs = and_bytes(seven, bytes_of(0x7f));
  Bytes count = xor_bytes(signs, shift_right<4>(signs));
  count = xor_bytes(count, shift_right<2>(count));
  count = xor_bytes(count, shift_right<1>(count));
  return or_bytes(signs, shift_left<7>(and_bytes(count, bytes_of(1))));
}

// The signs of the rows of a vector, one byte per eight weights of a row. Shifted points have none.
template <const QuantLayout& kLayout>
BALLAST_INLINE Bytes point_signs(const uint8_t* group, int row_vector) {
  constexpr Grid kGrid = kLayout.grid();
  if constexpr (kGrid.is_shifted()) return Bytes{};
  const Bytes signs = load_bytes(group + kLayout.sign_plane() + row_vector * kVectorBytes);
  return kGrid.sign_bits == 7 ? with_eighth_sign(signs) : signs;
}

// A quad of a vector's rows without signs. It is assembled in registers: a vector load of weights that were
// stored one by one would wait for all of these stores.
template <const QuantLayout& kLayout, int kQuad>
BALLAST_INLINE Bytes point_quad(const uint8_t* group, int row_vector) {
  constexpr int kFours = kVectorRows / 4;
  __m128i fours[kFours];
#pragma GCC unroll 4
  for (int i = 0; i < kFours; ++i) {
    const int row = row_vector * kVectorRows + 4 * i;
    if constexpr (kLayout.grid().weights == 8) {
      const TwoQuads quads = four_rows_of_eights<kLayout>(group, row, kQuad / 2);
      fours[i] = kQuad % 2 == 0 ? quads.first : quads.second;
    } else {
      fours[i] = four_rows_of_fours<kLayout>(group, row, kQuad);
    }
  }
  return join_fours(fours);
}

// The same with signs, as it is multiplied.
template <const QuantLayout& kLayout, int kQuad>
BALLAST_INLINE Bytes decode_point_quad(const uint8_t* group, int row_vector, Bytes signs) {
  const Bytes quad = point_quad<kLayout, kQuad>(group, row_vector);
  if constexpr (kLayout.grid().is_shifted()) return wide_codes(quad);
  return from_signed(negate_where<kQuad / 2, kQuad % 2>(quad, signs));
}

// Prevents the compiler from keeping the address of each row, for which there are not enough registers.
// Panels of one vector need few addresses and are slower with this.
BALLAST_INLINE const uint8_t* only_address(const uint8_t* group) {
  if constexpr (kPanelVectors > 1) __asm__("" : "+r"(group));
  return group;
}

// Decodes the rows of a vector, one quad per kStride bytes. Two adjacent quads share points, which would be
// looked up again after a store.
template <const QuantLayout& kLayout, int kStride, int kRowVector, int kQuad = 0>
BALLAST_INLINE void decode_points(const uint8_t* group, Bytes signs, uint8_t* out) {
  if constexpr (kQuad < kGroupQuads) {
    const Bytes first = decode_point_quad<kLayout, kQuad>(group, kRowVector, signs);
    const Bytes second = decode_point_quad<kLayout, kQuad + 1>(group, kRowVector, signs);
    store_codes(out + kQuad * kStride, first);
    store_codes(out + (kQuad + 1) * kStride, second);
    decode_points<kLayout, kStride, kRowVector, kQuad + 2>(group, signs, out);
  }
}

#ifndef BALLAST_PERMUTES_POINTS
template <const QuantLayout& kLayout, int kStride>
BALLAST_INLINE bool decode_by_permutes(const uint8_t*, int64_t, uint8_t*) {
  return false;
}
#endif

// Decodes consecutive groups, each as decode_points does.
template <const QuantLayout& kLayout, int kStride, int kRowVector = 0>
BALLAST_INLINE void decode_groups(const uint8_t* first, int64_t count, int row_vector, uint8_t* out) {
  if (decode_by_permutes<kLayout, kStride>(first, count, out)) return;
  if constexpr (kRowVector + 1 < kPanelVectors) {
    if (row_vector > kRowVector)
      return decode_groups<kLayout, kStride, kRowVector + 1>(first, count, row_vector, out);
  }
  for (int64_t index = 0; index < count; ++index) {
    const uint8_t* const group = only_address(first + index * kLayout.group_bytes());
    decode_points<kLayout, kStride, kRowVector>(group, point_signs<kLayout>(group, kRowVector),
                                                out + index * kGroupQuads * kStride);
  }
}

// n in the scale 2 n + 1 of a sub-block. `index` is the position of the group in its super-block.
template <const QuantLayout& kLayout>
BALLAST_INLINE Ints sub_scale(const uint8_t* record, const uint8_t* group, int row_vector, int64_t index,
                              int sub) {
  if constexpr (kLayout.scales == Scales::kOddNibbles) {
    constexpr bool kHasTwo = kLayout.subs_per_group() == 2;
    const uint8_t* const bytes = record + 2 * kPanelRows + (kHasTwo ? index : index / 2) * kPanelRows;
    const Ints both = load_int8(bytes + row_vector * kVectorRows);
    return (kHasTwo ? sub : index % 2) == 0 ? low_nibbles(both) : high_nibbles(both);
  } else if constexpr (kLayout.grid().is_shifted()) {
    const Ints nibbles = load_uint16(group + kLayout.high_plane() + row_vector * kVectorRows * 2);
    const auto bit = [&](Ints shifted, int position) {
      return and_bytes(shifted, broadcast_int(1 << position));
    };
    return or_bytes(bit(shift_right_ints<3>(nibbles), 0),
                    or_bytes(bit(shift_right_ints<6>(nibbles), 1), bit(shift_right_ints<9>(nibbles), 2)));
  } else {
    const Ints words = load_bytes(group + kLayout.sign_plane() + row_vector * kVectorBytes);
    const Ints tops = and_bytes(shift_right_ints<7>(words), broadcast_int(0x01010101));
    const Ints four = or_bytes(or_bytes(tops, shift_right_ints<7>(tops)),
                               or_bytes(shift_right_ints<14>(tops), shift_right_ints<21>(tops)));
    return and_bytes(four, broadcast_int(15));
  }
}

template <const QuantLayout& kLayout>
BALLAST_INLINE Floats point_scale(const uint8_t* record, const uint8_t* group, int row_vector, int64_t index,
                                  int sub) {
  constexpr float kUnit = 1.0f / (1 << kLayout.grid().scale_log2);
  const Ints odd = add_ints(shift_left_ints<1>(sub_scale<kLayout>(record, group, row_vector, index, sub)),
                            broadcast_int(1));
  const Floats scale =
      multiply(halves_to_floats(record + row_vector * kVectorRows * 2), broadcast_float(kUnit));
  return multiply(scale, to_floats(odd));
}

}  // namespace
}  // namespace ballast
