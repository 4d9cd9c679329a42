// AVX-512 with VNNI, as cpu/simd.md specifies. A vector holds all 16 rows of a panel.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/panel_layout.h"

#ifndef BALLAST_INLINE
#define BALLAST_INLINE static inline __attribute__((always_inline))
#endif
#define BALLAST_NOINLINE __attribute__((noinline))

namespace ballast {
namespace {

using Bytes = __m512i;
using Ints = __m512i;
using Floats = __m512;

constexpr int kVectorRows = 16;
constexpr int kVectorBytes = kVectorRows * 4;  // bytes of one quad
constexpr int kPanelVectors = kPanelRows / kVectorRows;
// Vectors and tokens that are multiplied together, and tokens with a single panel: the most that registers
// can hold.
constexpr int kQuantVectors = 2;
constexpr int kQuantTokens = 4;
constexpr int kByteTokens = 6;  // with one-byte activations, where super-blocks are added up in integers
constexpr int kSingleTokens = 8;
constexpr int kFloatTokens = 4;
// Cache entries that attention processes together, for one vector of rows and for two.
constexpr int kSingleItems = 12;
constexpr int kPairItems = 12;
// Codes of eight bits are multiplied as unsigned bytes, plus 128.
constexpr bool kWideIsBiased = true;
constexpr int kLargestWideCode = 255;
constexpr bool is_signed(const QuantLayout&) { return false; }
constexpr int bias_of(const QuantLayout& layout) { return layout.offset; }
// Products are added up in 32 bits, never in 16.
constexpr int quads_in_words(int) { return 0; }
template <bool kSigned>
void add_in_words(Bytes& sum, bool is_first, Bytes quad, Bytes four);
constexpr bool joins_digits(const QuantLayout&, int) { return false; }
// A two-byte activation is kDigitBase times the first byte plus the second, both -128 to 127.
constexpr int kDigitBase = 256;

BALLAST_INLINE Bytes load_bytes(const uint8_t* from) { return _mm512_loadu_si512(from); }
BALLAST_INLINE void store_codes(uint8_t* to, Bytes a) { _mm512_store_si512(to, a); }
BALLAST_INLINE Bytes bytes_of(int value) { return _mm512_set1_epi8(static_cast<char>(value)); }
BALLAST_INLINE Bytes and_bytes(Bytes a, Bytes b) { return _mm512_and_si512(a, b); }
BALLAST_INLINE Bytes or_bytes(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
BALLAST_INLINE Bytes xor_bytes(Bytes a, Bytes b) { return _mm512_xor_si512(a, b); }
BALLAST_INLINE Bytes add_bytes(Bytes a, Bytes b) { return _mm512_add_epi8(a, b); }
// Saturates at 0.
BALLAST_INLINE Bytes subtract_one(Bytes a) { return _mm512_subs_epu8(a, bytes_of(1)); }
// (a + b + 1) / 2.
BALLAST_INLINE Bytes average_bytes(Bytes a, Bytes b) { return _mm512_avg_epu8(a, b); }
// The caller masks off bits that cross from byte to byte.
template <int kShift>
BALLAST_INLINE Bytes shift_left(Bytes a) {
  return _mm512_slli_epi16(a, kShift);
}
template <int kShift>
BALLAST_INLINE Bytes shift_right(Bytes a) {
  return _mm512_srli_epi16(a, kShift);
}

// One byte per row, repeated four times.
BALLAST_INLINE Bytes byte_of_rows(const uint8_t* from) {
  const __m128i rows = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  const __m512i four_times = _mm512_set_epi32(0x0f0f0f0f, 0x0e0e0e0e, 0x0d0d0d0d, 0x0c0c0c0c, 0x0b0b0b0b,
                                              0x0a0a0a0a, 0x09090909, 0x08080808, 0x07070707, 0x06060606,
                                              0x05050505, 0x04040404, 0x03030303, 0x02020202, 0x01010101, 0);
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(rows), four_times);
}
// 16-bit words.
BALLAST_INLINE Bytes words_of(int value) { return _mm512_set1_epi16(static_cast<short>(value)); }
BALLAST_INLINE Bytes add_words(Bytes a, Bytes b) { return _mm512_add_epi16(a, b); }
BALLAST_INLINE Bytes subtract_words(Bytes a, Bytes b) { return _mm512_sub_epi16(a, b); }
BALLAST_INLINE Bytes multiply_words(Bytes a, Bytes b) { return _mm512_mullo_epi16(a, b); }
// Sign-extended.
BALLAST_INLINE Bytes high_bytes_of_words(Bytes a) { return _mm512_srai_epi16(a, 8); }
// The first word of each row from `even`, the second from `odd`.
BALLAST_INLINE Bytes blend_words(Bytes even, Bytes odd) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, even, odd);
}

// The steps of a table plus 128, by code.
template <CodeTable kTable>
BALLAST_INLINE Bytes table_steps(Bytes codes) {
  static constexpr TableSteps kSteps = steps_of(kTable).biased();
  const __m128i steps = _mm_load_si128(reinterpret_cast<const __m128i*>(kSteps.by_code));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(steps), codes);
}
BALLAST_INLINE Bytes wide_codes(Bytes codes) { return codes; }
// Signed numbers as they are multiplied.
BALLAST_INLINE Bytes from_signed(Bytes numbers) { return _mm512_xor_si512(numbers, bytes_of(128)); }
// Negates the numbers of each row whose bit is set in the lower or upper half of byte kByte of the row's
// signs.
template <int kByte, int kHalf>
BALLAST_INLINE Bytes negate_where(Bytes numbers, Bytes signs) {
  const __m128i from =
      _mm_setr_epi8(kByte, kByte, kByte, kByte, kByte + 4, kByte + 4, kByte + 4, kByte + 4, kByte + 8,
                    kByte + 8, kByte + 8, kByte + 8, kByte + 12, kByte + 12, kByte + 12, kByte + 12);
  const __m512i of_row = _mm512_shuffle_epi8(signs, _mm512_broadcast_i32x4(from));
  const __mmask64 negative = _mm512_test_epi8_mask(of_row, _mm512_set1_epi32(0x08040201 << 4 * kHalf));
  return _mm512_mask_sub_epi8(numbers, negative, _mm512_setzero_si512(), numbers);
}

// Joins the quarters of a vector, of four rows each.
BALLAST_INLINE Bytes join_fours(const __m128i* fours) {
  const __m256i lower = _mm256_set_m128i(fours[1], fours[0]);
  const __m256i upper = _mm256_set_m128i(fours[3], fours[2]);
  return _mm512_inserti64x4(_mm512_castsi256_si512(lower), upper, 1);
}

BALLAST_INLINE Floats halves_to_floats(const uint8_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
BALLAST_INLINE void store_halves(uint8_t* to, Floats a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
BALLAST_INLINE Floats bfloats_to_floats(const uint8_t* from) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
// 2 to the power of byte - 128; subnormal for 0 and 1.
BALLAST_INLINE Floats powers_to_floats(const uint8_t* from) {
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(bytes, _mm512_set1_epi32(1)), 23);
  const __m512i small = _mm512_min_epi32(bytes, _mm512_set1_epi32(1));
  return _mm512_castsi512_ps(
      _mm512_max_epi32(normal, _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), small)));
}
// Half of each E4M3 float of seven bits: its bits are shifted into those of a half, which is 2^8 / 2 times
// too large.
BALLAST_INLINE Floats e4m3_to_floats(const uint8_t* from) {
  const __m256i bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_slli_epi16(bytes, 7)), _mm512_set1_ps(128.0f));
}
BALLAST_INLINE Ints load_int8(const uint8_t* from) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
BALLAST_INLINE Ints load_uint16(const uint8_t* from) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
BALLAST_INLINE Ints low_nibbles(Ints a) { return _mm512_and_si512(a, _mm512_set1_epi32(15)); }
BALLAST_INLINE Ints high_nibbles(Ints a) { return low_nibbles(_mm512_srli_epi32(a, 4)); }

BALLAST_INLINE Ints zero_ints() { return _mm512_setzero_si512(); }
BALLAST_INLINE Ints add_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
BALLAST_INLINE Ints subtract_ints(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
BALLAST_INLINE Ints broadcast_int(int32_t value) { return _mm512_set1_epi32(value); }
template <int kShift>
BALLAST_INLINE Ints shift_left_ints(Ints a) {
  return _mm512_slli_epi32(a, kShift);
}

template <int kShift>
BALLAST_INLINE Ints shift_right_ints(Ints a) {
  return _mm512_srli_epi32(a, kShift);
}

// Adds the products of the two words of each row.
BALLAST_INLINE Ints add_word_products(Ints sums, Bytes a, Bytes b) { return _mm512_dpwssd_epi32(sums, a, b); }
BALLAST_INLINE Bytes broadcast_pair(const int16_t* words) {
  int32_t pair;
  __builtin_memcpy(&pair, words, sizeof(pair));
  return _mm512_set1_epi32(pair);
}

BALLAST_INLINE Ints times_digit_base(Ints a) { return shift_left_ints<8>(a); }

BALLAST_INLINE __m512i broadcast_four(const int8_t* activations) {
  int32_t four;
  __builtin_memcpy(&four, activations, sizeof(four));
  return _mm512_set1_epi32(four);
}

// Adds the dot products of two adjacent quads with eight activations to the sums of each vector.
template <bool kSigned, int kLargest, int kVectors>
BALLAST_INLINE void add_two_quads(Ints* sums, const Bytes* first, const Bytes* second,
                                  const int8_t* activations) {
  const __m512i four = broadcast_four(activations);
  const __m512i next_four = broadcast_four(activations + 4);
#pragma GCC unroll 4
  for (int vector = 0; vector < kVectors; ++vector) {
    sums[vector] = _mm512_dpbusd_epi32(sums[vector], first[vector], four);
    sums[vector] = _mm512_dpbusd_epi32(sums[vector], second[vector], next_four);
  }
}

BALLAST_INLINE Floats load_floats(const float* from) { return _mm512_loadu_ps(from); }
BALLAST_INLINE void store_floats(float* to, Floats a) { _mm512_storeu_ps(to, a); }
BALLAST_INLINE Floats zero_floats() { return _mm512_setzero_ps(); }
BALLAST_INLINE Floats broadcast_float(float value) { return _mm512_set1_ps(value); }
BALLAST_INLINE Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
BALLAST_INLINE Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
BALLAST_INLINE Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
BALLAST_INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
BALLAST_INLINE Floats multiply_subtract_from(Floats a, Floats b, Floats c) {
  return _mm512_fnmadd_ps(a, b, c);
}

BALLAST_INLINE Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
// b if either is NaN.
BALLAST_INLINE Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
BALLAST_INLINE Floats where_less(Floats a, Floats bound, Floats value, Floats otherwise) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, bound, _CMP_LT_OQ), otherwise, value);
}
BALLAST_INLINE Floats zero_where_less(Floats a, Floats bound, Floats value) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, bound, _CMP_NLT_UQ), value);
}
// 2 to the power of the signed integer in the low bits of a's fraction.
BALLAST_INLINE Floats exponent_of_low_bits(Floats a) {
  return _mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_slli_epi32(_mm512_castps_si512(a), 23), _mm512_set1_epi32(0x3f800000)));
}

typedef int64_t Longs __attribute__((vector_size(64)));
constexpr int kDoubleLanes = 8;
// One bit per lane of the result of a comparison.
BALLAST_INLINE unsigned lane_bits(Longs where) {
  return _mm512_movepi64_mask(reinterpret_cast<__m512i>(where));
}

}  // namespace
}  // namespace ballast
