// Looks up grid points in the column order that is cheapest for a CPU that permutes bytes, and reorders
// activations to match. Include it before the headers of cpu/panels.
#pragma once

#include "cpu/avx512/points-inl.h"

namespace ballast {
namespace {

// The position of a weight's level and sign in an index of six bits. The other bits belong to other weights.
struct IndexBits {
  int number;
  int sign;
};

// The order of the weights in the two bytes of a point of eight, four per byte from the lowest bits, and of a
// point of four.
static constexpr int kWeightsOfEight[] = {4, 5, 0, 1, 6, 7, 2, 3};
static constexpr int kWeightsOfFour[] = {2, 0, 3, 1};

// The levels of each point as two tables of bytes in this order, two or three bits each, and the steps that
// look_up_group's indices select.
template <CodeTable kTable>
struct OrderedTables {
  static constexpr Grid kGrid = grid_of(kTable);
  static constexpr int kPoints = 1 << kGrid.index_bits;
  static constexpr bool kEights = kGrid.weights == 8;
  static constexpr int kInByte = kGrid.weights / 2;
  static constexpr int kNumberBits = kEights ? 2 : 3;
  static constexpr IndexBits kIndices[] = {{0, 4}, {2, 5}, {2, 0}, {4, 1}};
  static constexpr IndexBits kIndicesOfFour[] = {{3, 1}, {3, 2}, {0, 3}, {0, 4}};

  alignas(64) uint8_t bytes[2][kPoints];
  alignas(64) uint8_t steps[4][64];  // plus 128

  constexpr OrderedTables() : bytes{}, steps{} {
    for (int index = 0; index < kPoints; ++index) {
      for (int at = 0; at < kGrid.weights; ++at) {
        const int weight = kEights ? kWeightsOfEight[at] : kWeightsOfFour[at];
        const int number = kGrid.points[index] >> weight * kGrid.level_bits() & ((1 << kNumberBits) - 1);
        bytes[at / kInByte][index] |= static_cast<uint8_t>(number << at % kInByte * kNumberBits);
      }
    }
    for (int which = 0; which < 4; ++which) {
      const IndexBits bits = kEights ? kIndices[which] : kIndicesOfFour[which];
      for (int i = 0; i < 64; ++i) {
        const int number = i >> bits.number & ((1 << kNumberBits) - 1);
        const int level = number < (kEights ? 3 : 8) ? kGrid.levels[number] : 0;
        steps[which][i] = static_cast<uint8_t>(i >> bits.sign & 1 ? 128 - level : 128 + level);
      }
    }
  }
};

template <CodeTable kTable>
static constexpr OrderedTables<kTable> kOrderedTables{};

// The column of each byte of a group's quads. The bytes after them in a block of activations keep their
// position, or are the second bytes.
template <const QuantLayout& kLayout, int kBytes>
struct ColumnOrder {
  alignas(64) uint8_t from[64];

  constexpr ColumnOrder() : from{} {
    for (int at = 0; at < kGroupCols; ++at) {
      const int quad = at / 4;
      const int byte = at % 4;
      int column = 8 * byte + kWeightsOfEight[quad];
      if (kLayout.subs_per_group() == 2) {
        const int half = quad / 4;
        column = 16 * half + 8 * (byte % 2) + kWeightsOfEight[quad % 4] + 2 * (byte / 2 ^ half);
      }
      if (kLayout.grid().weights == 4) column = 16 * (quad / 4) + 4 * byte + quad % 4;
      from[at] = static_cast<uint8_t>(column);
      from[kGroupCols + at] = static_cast<uint8_t>(kGroupCols + (kBytes == 2 ? column : at));
    }
  }
};

template <const QuantLayout& kLayout, int kBytes>
static constexpr ColumnOrder<kLayout, kBytes> kColumnOrder{};

// Reorders blocks of activations.
template <const QuantLayout& kLayout, int kBytes>
BALLAST_VBMI_INLINE void order_columns(const ActivationBlock<kBytes>* from, ActivationBlock<kBytes>* to) {
  const __m512i order = _mm512_load_si512(kColumnOrder<kLayout, kBytes>.from);
#pragma GCC unroll 8
  for (int i = 0; i < kSuperGroups; ++i) {
    _mm512_store_si512(to + i, _mm512_permutexvar_epi8(order, _mm512_load_si512(from + i)));
    if constexpr (kBytes == 2) _mm512_store_si512(&to[i].scale, _mm512_load_si512(&from[i].scale));
  }
}

BALLAST_VBMI_INLINE __m512i choose_bits(int mask, __m512i numbers, __m512i signs) {
  return _mm512_ternarylogic_epi32(_mm512_set1_epi8(static_cast<char>(mask)), numbers, signs, 0xca);
}

template <CodeTable kTable>
BALLAST_VBMI_INLINE __m512i ordered_steps(int which, __m512i indices) {
  return _mm512_permutexvar_epi8(indices, _mm512_load_si512(kOrderedTables<kTable>.steps[which]));
}

// Bit 8 or above of the numbers of a row's points, for each of four points from `first`.
BALLAST_VBMI_INLINE __mmask64 high_bit(__m512i same, int first, int step) {
  const int64_t bits = int64_t{1} << first | int64_t{256} << (first + step) |
                       int64_t{65536} << (first + 2 * step) | int64_t{16777216} << (first + 3 * step);
  return test_row(same, bits);
}

template <const QuantLayout& kLayout>
BALLAST_VBMI_INLINE void look_up_eights(const uint8_t* group, __m512i (&quads)[kGroupQuads]) {
  constexpr Grid kGrid = kLayout.grid();
  constexpr CodeTable kTable = kLayout.table;
  const auto& tables = kOrderedTables<kTable>;
  const __m512i numbers = _mm512_loadu_si512(group);
  __m512i signs = _mm512_loadu_si512(group + kLayout.sign_plane());
  const __mmask64 top = _mm512_movepi8_mask(numbers);
  __mmask64 high[2] = {};
  if constexpr (kGrid.index_bits == 9) high[0] = _mm512_movepi8_mask(signs);
  if constexpr (kGrid.high_bytes == 1) {
    const __m512i same = byte_of_rows(group + kLayout.high_plane());
    high[0] = high_bit(same, 0, 2);
    high[1] = high_bit(same, 1, 2);
  }
  if constexpr (kGrid.sign_bits == 7) signs = all_signs(signs);
  const __m512i first = bytes_at<kGrid.index_bits>(tables.bytes[0], numbers, top, high);
  const __m512i second = bytes_at<kGrid.index_bits>(tables.bytes[1], numbers, top, high);
  __m512i numbers_of[2] = {first, second};
  __m512i signs_of[2];
  if constexpr (kLayout.subs_per_group() == 1) {
    signs_of[0] = signs;
    signs_of[1] = _mm512_srli_epi16(signs, 2);
  } else {
    // Two points of four bytes in each half.
    const __m512i turned = _mm512_rol_epi32(second, 16);
    numbers_of[0] = _mm512_mask_blend_epi16(0xaaaaaaaa, first, turned);
    numbers_of[1] = _mm512_mask_blend_epi16(0xaaaaaaaa, turned, first);
    signs_of[0] = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x2a2228200a020800), signs);
    signs_of[1] = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x38303a3218101a12), signs);
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const __m512i lower = choose_bits(0x0f, numbers_of[half], signs_of[half]);
    const __m512i upper = choose_bits(0x3c, _mm512_srli_epi16(numbers_of[half], 2), signs_of[half]);
    quads[4 * half] = ordered_steps<kTable>(0, lower);
    quads[4 * half + 1] = ordered_steps<kTable>(1, lower);
    quads[4 * half + 2] = ordered_steps<kTable>(2, upper);
    quads[4 * half + 3] = ordered_steps<kTable>(3, upper);
  }
}

template <const QuantLayout& kLayout>
BALLAST_VBMI_INLINE void look_up_fours(const uint8_t* group, __m512i (&quads)[kGroupQuads]) {
  constexpr Grid kGrid = kLayout.grid();
  constexpr CodeTable kTable = kLayout.table;
  const auto& tables = kOrderedTables<kTable>;
  __m512i signs = _mm512_loadu_si512(group + kLayout.sign_plane());
  if constexpr (kGrid.sign_bits == 7) signs = all_signs(signs);
#pragma GCC unroll 2
  for (int four = 0; four < 2; ++four) {
    const __m512i numbers = _mm512_loadu_si512(group + four * kQuadBytes);
    const __mmask64 top = _mm512_movepi8_mask(numbers);
    __mmask64 high[1] = {};
    if constexpr (kGrid.high_bytes == 1)
      high[0] = high_bit(byte_of_rows(group + kLayout.high_plane()), 4 * four, 1);
    const __m512i first = bytes_at<kGrid.index_bits>(tables.bytes[0], numbers, top, high);
    const __m512i second = bytes_at<kGrid.index_bits>(tables.bytes[1], numbers, top, high);
    const __m512i of_points = _mm512_multishift_epi64_epi8(bits_from(16 * four - 1, 4), signs);
    quads[4 * four] = ordered_steps<kTable>(0, choose_bits(0x38, first, of_points));
    quads[4 * four + 1] = ordered_steps<kTable>(1, choose_bits(0x38, second, of_points));
    quads[4 * four + 2] = ordered_steps<kTable>(2, choose_bits(0x07, first, of_points));
    quads[4 * four + 3] = ordered_steps<kTable>(3, choose_bits(0x07, second, of_points));
  }
}

// The quads of a group in the order of ColumnOrder.
template <const QuantLayout& kLayout>
BALLAST_VBMI_INLINE void look_up_group(const uint8_t* group, __m512i (&quads)[kGroupQuads]) {
  if constexpr (kLayout.grid().weights == 8) {
    look_up_eights<kLayout>(group, quads);
  } else {
    look_up_fours<kLayout>(group, quads);
  }
}

}  // namespace
}  // namespace ballast
