// Looks up grid points on CPUs that permute bytes (VBMI): 64 points at a time, in tables in registers. Other
// CPUs with AVX-512 look them up one by one. Include it before the headers of cpu/panels.
#pragma once

#include "cpu/avx512/simd.h"
#include "cpu/panel_layout.h"

#define BALLAST_PERMUTES_POINTS
#define BALLAST_MULTIPLIES_POINTS
#define BALLAST_VBMI __attribute__((target("avx512vbmi,gfni")))
#define BALLAST_VBMI_INLINE static inline __attribute__((always_inline, target("avx512vbmi,gfni")))

namespace ballast {
namespace {

// Whether the CPU permutes bytes and multiplies bits. Since Ice Lake, CPUs that do one do both.
BALLAST_INLINE bool permutes_points() {
  return __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("gfni");
}

template <int kBytes>
constexpr int64_t kMostInRegisters = 4;
BALLAST_INLINE bool looks_up_into_registers() { return permutes_points(); }

// The sixteen bits of a point's levels as two tables of bytes.
template <CodeTable kTable>
struct PointTables {
  static constexpr Grid kGrid = grid_of(kTable);
  static constexpr int kPoints = 1 << kGrid.index_bits;

  alignas(64) uint8_t bytes[2][kPoints];
  // The value of each level, plus 128. The bit above the level is a sign or shifts the weight down.
  alignas(64) uint8_t steps[64];

  constexpr PointTables() : bytes{}, steps{} {
    for (int index = 0; index < kPoints; ++index) {
      bytes[0][index] = static_cast<uint8_t>(kGrid.points[index]);
      bytes[1][index] = static_cast<uint8_t>(kGrid.points[index] >> 8);
    }
    constexpr int kNumberBits = kGrid.weights == 8 ? 2 : 3;
    constexpr int kLevels = kGrid.weights == 8 ? 3 : 8;
    for (int i = 0; i < 64; ++i) {
      const int number = i & ((1 << kNumberBits) - 1);
      const int level = number < kLevels ? kGrid.levels[number] : 0;
      const bool bit = i >> kNumberBits & 1;
      steps[i] = static_cast<uint8_t>(128 + (kGrid.is_shifted() ? 8 * level + (bit ? -1 : 1)
                                             : bit              ? -level
                                                                : level));
    }
  }
};

template <CodeTable kTable>
static constexpr PointTables<kTable> kPointTables{};

// Looks up 64 numbers in a table of 2^kBits bytes; `high` holds the bits beyond eight.
template <int kBits>
BALLAST_VBMI_INLINE __m512i bytes_at(const uint8_t* table, __m512i numbers, __mmask64 top,
                                     const __mmask64* high) {
  if constexpr (kBits == 7) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), numbers, _mm512_load_si512(table + 64));
  } else {
    constexpr int kHalf = 1 << (kBits - 1);
    const __mmask64 is_second = kBits == 8 ? top : high[kBits >= 9 ? kBits - 9 : 0];
    return _mm512_mask_blend_epi8(is_second, bytes_at<kBits - 1>(table, numbers, top, high),
                                  bytes_at<kBits - 1>(table + kHalf, numbers, top, high));
  }
}

// The operand of _mm512_multishift_epi64_epi8: byte c of each row takes eight of the row's 32 bits, from
// first + step * c.
BALLAST_VBMI_INLINE __m512i bits_from(int first, int step) {
  int64_t eight = 0;
  for (int i = 0; i < 8; ++i)
    eight |= static_cast<int64_t>(((i / 4 * 32 + first + i % 4 * step) & 63)) << 8 * i;
  return _mm512_set1_epi64(eight);
}

// Bytes a, b, c, d of the 32 bits of each row.
BALLAST_VBMI_INLINE __m512i spread_bytes(__m512i words, int a, int b, int c, int d) {
  const __m128i from =
      _mm_setr_epi8(static_cast<char>(a), static_cast<char>(b), static_cast<char>(c), static_cast<char>(d),
                    static_cast<char>(a + 4), static_cast<char>(b + 4), static_cast<char>(c + 4),
                    static_cast<char>(d + 4), static_cast<char>(a + 8), static_cast<char>(b + 8),
                    static_cast<char>(c + 8), static_cast<char>(d + 8), static_cast<char>(a + 12),
                    static_cast<char>(b + 12), static_cast<char>(c + 12), static_cast<char>(d + 12));
  return _mm512_shuffle_epi8(words, _mm512_broadcast_i32x4(from));
}

BALLAST_VBMI_INLINE __mmask64 test_row(__m512i bytes, int64_t bits) {
  return _mm512_test_epi8_mask(bytes, _mm512_set1_epi32(static_cast<int>(bits)));
}

// Completes the eighth sign of each byte: the number of signs is even. Multiplies by a matrix of bits whose
// rows are bytes; the row of the top bit is the lowest.
BALLAST_VBMI_INLINE __m512i all_signs(__m512i seven) {
  return _mm512_gf2p8affine_epi64_epi8(seven, _mm512_set1_epi64(0x010204081020407f), 0);
}

// The quads of four points of eight weights.
template <const QuantLayout& kLayout>
BALLAST_VBMI_INLINE void permute_eights(const uint8_t* group, __m512i steps, __m512i (&quads)[kGroupQuads]) {
  constexpr Grid kGrid = kLayout.grid();
  const auto& tables = kPointTables<kLayout.table>;
  const __m512i numbers = _mm512_loadu_si512(group);
  const __mmask64 top = _mm512_movepi8_mask(numbers);
  __mmask64 high[3] = {};
  __m512i tops;  // sign bits of each point, or all ones in the byte if it is shifted down
  if constexpr (kGrid.is_shifted()) {
    const __m512i words = _mm512_cvtepu16_epi32(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group + kLayout.high_plane())));
    const __m512i nibbles = spread_bytes(words, 0, 0, 1, 1);
    high[0] = test_row(nibbles, 0x10011001);
    high[1] = test_row(nibbles, 0x20022002);
    high[2] = test_row(nibbles, 0x40044004);
    const bool in_codes = kLayout.scales == Scales::kOddInCodes;
    tops = _mm512_movm_epi8(in_codes ? test_row(spread_bytes(words, 1, 1, 1, 1), 0x80808080)
                                     : test_row(nibbles, 0x80088008));
  } else {
    tops = _mm512_loadu_si512(group + kLayout.sign_plane());
    if constexpr (kGrid.index_bits == 9) high[0] = _mm512_movepi8_mask(tops);
    if constexpr (kGrid.high_bytes == 1) {
      const __m512i words = _mm512_cvtepu8_epi32(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(group + kLayout.high_plane())));
      const __m512i same = spread_bytes(words, 0, 0, 0, 0);
      high[0] = test_row(same, 0x40100401);
      high[1] = test_row(same, 0x80200802);
    }
    if constexpr (kGrid.sign_bits == 7) tops = all_signs(tops);
  }
  const __m512i first = bytes_at<kGrid.index_bits>(tables.bytes[0], numbers, top, high);
  const __m512i second = bytes_at<kGrid.index_bits>(tables.bytes[1], numbers, top, high);
#pragma GCC unroll 8
  for (int quad = 0; quad < kGroupQuads; ++quad) {
    const int bit = quad / 2 * 8;
    const __m512i codes = _mm512_multishift_epi64_epi8(bits_from(bit, 2), quad % 2 == 0 ? first : second);
    const __m512i above = _mm512_multishift_epi64_epi8(
        kGrid.is_shifted() ? bits_from(bit, 0) : bits_from(bit + quad % 2 * 4 - 2, 1), tops);
    // Two bits of `codes`, the others of `above`: 0xca selects by the first operand.
    const __m512i both = _mm512_ternarylogic_epi32(_mm512_set1_epi8(3), codes, above, 0xca);
    quads[quad] = _mm512_permutexvar_epi8(both, steps);
  }
}

// The quads of eight points of four weights.
template <const QuantLayout& kLayout>
BALLAST_VBMI_INLINE void permute_fours(const uint8_t* group, __m512i steps, __m512i (&quads)[kGroupQuads]) {
  constexpr Grid kGrid = kLayout.grid();
  const auto& tables = kPointTables<kLayout.table>;
  __m512i signs = _mm512_loadu_si512(group + kLayout.sign_plane());
  if constexpr (kGrid.sign_bits == 7) signs = all_signs(signs);
  __mmask64 high[2] = {};
  if constexpr (kGrid.high_bytes == 1) {
    const __m512i words =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(group + kLayout.high_plane())));
    const __m512i same = spread_bytes(words, 0, 0, 0, 0);
    high[0] = test_row(same, 0x08040201);
    high[1] = test_row(same, 0x80402010);
  }
#pragma GCC unroll 2
  for (int four = 0; four < 2; ++four) {
    const __m512i numbers = _mm512_loadu_si512(group + four * kQuadBytes);
    const __mmask64 top = _mm512_movepi8_mask(numbers);
    const __m512i first = bytes_at<kGrid.index_bits>(tables.bytes[0], numbers, top, high + four);
    const __m512i second = bytes_at<kGrid.index_bits>(tables.bytes[1], numbers, top, high + four);
#pragma GCC unroll 4
    for (int point = 0; point < 4; ++point) {
      const int quad = 4 * four + point;
      // Two weights from each byte.
      __m512i codes = _mm512_multishift_epi64_epi8(bits_from(8 * point, 4), first);
      codes =
          _mm512_mask_multishift_epi64_epi8(codes, 0xcccccccccccccccc, bits_from(8 * point - 8, 4), second);
      const __m512i above =
          _mm512_multishift_epi64_epi8(bits_from(quad / 2 * 8 + quad % 2 * 4 - 3, 1), signs);
      const __m512i both = _mm512_ternarylogic_epi32(_mm512_set1_epi8(7), codes, above, 0xca);
      quads[quad] = _mm512_permutexvar_epi8(both, steps);
    }
  }
}

template <const QuantLayout& kLayout>
BALLAST_VBMI_INLINE void permute_group(const uint8_t* group, __m512i steps, __m512i (&quads)[kGroupQuads]) {
  if constexpr (kLayout.grid().weights == 8) {
    permute_eights<kLayout>(group, steps, quads);
  } else {
    permute_fours<kLayout>(group, steps, quads);
  }
}

// Decodes `count` groups of one panel, one quad per kStride bytes.
template <const QuantLayout& kLayout, int kStride>
BALLAST_VBMI BALLAST_NOINLINE void permute_points(const uint8_t* group, int64_t count, uint8_t* out) {
  const __m512i steps = _mm512_load_si512(kPointTables<kLayout.table>.steps);
  for (int64_t i = 0; i < count; ++i, group += kLayout.group_bytes(), out += kGroupQuads * kStride) {
    __m512i quads[kGroupQuads];
    permute_group<kLayout>(group, steps, quads);
#pragma GCC unroll 8
    for (int quad = 0; quad < kGroupQuads; ++quad) _mm512_store_si512(out + quad * kStride, quads[quad]);
  }
}

// Decodes groups as decode_points does and returns true, or returns false if the CPU cannot permute bytes.
template <const QuantLayout& kLayout, int kStride>
BALLAST_INLINE bool decode_by_permutes(const uint8_t* group, int64_t count, uint8_t* out) {
  if (!permutes_points()) return false;
  permute_points<kLayout, kStride>(group, count, out);
  return true;
}

}  // namespace
}  // namespace ballast
