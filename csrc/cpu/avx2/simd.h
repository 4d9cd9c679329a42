// AVX2 with FMA and F16C, as cpu/simd.md specifies. A vector holds 8 of the 16 rows of a panel.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/panel_layout.h"

#ifndef BALLAST_INLINE
#define BALLAST_INLINE static inline __attribute__((always_inline))
#endif
#define BALLAST_NOINLINE __attribute__((noinline))
#define BALLAST_MULTIPLIES_POINTS

namespace ballast {
namespace {

using Bytes = __m256i;
using Ints = __m256i;
using Floats = __m256;

constexpr int kVectorRows = 8;
constexpr int kVectorBytes = kVectorRows * 4;  // bytes of one quad
constexpr int kPanelVectors = kPanelRows / kVectorRows;
// Vectors and tokens that are multiplied together, and tokens with a single panel: the most that registers
// can hold.
constexpr int kQuantVectors = 2;
constexpr int kQuantTokens = 4;
constexpr int kByteTokens = 4;  // with one-byte activations, where super-blocks are added up in integers
constexpr int kSingleTokens = 4;
constexpr int kFloatTokens = 2;
// Cache entries that attention processes together, for one vector of rows and for two.
constexpr int kSingleItems = 12;
constexpr int kPairItems = 6;
// Codes of eight bits are multiplied as signed bytes. Codes of E2M1 are multiplied as unsigned bytes plus 16.
constexpr bool kWideIsBiased = false;
constexpr int kE2M1Bias = 16;
constexpr int kLargestWideCode = 12 + kE2M1Bias;
constexpr bool is_signed(const QuantLayout& layout) {
  return layout.is_wide() && layout.table != CodeTable::kE2M1;
}
// The value that was added to codes as they are multiplied: a power of two, or 0.
constexpr int bias_of(const QuantLayout& layout) {
  return is_signed(layout) ? 0 : layout.is_wide() ? kE2M1Bias : layout.offset;
}
// Whether two-byte activations are multiplied as 16-bit numbers. With signed codes this is faster than two
// bytes.
constexpr bool joins_digits(const QuantLayout& layout, int num_bytes) {
  return num_bytes == 2 && is_signed(layout);
}
// Quads whose products are added up in 16 bits: each adds at most 2 * 127 times the largest code.
constexpr int quads_in_words(int largest_code) {
  int quads = kGroupQuads;
  while (quads * 2 * 127 * largest_code > 32767) quads /= 2;
  return quads;
}
// The most tokens for which points are looked up into registers. More tokens use decoded panels. Two-byte
// activations widen the codes and leave no registers.
template <int kBytes>
constexpr int64_t kMostInRegisters = kBytes == 1 ? kQuantTokens : 0;
constexpr bool looks_up_into_registers() { return true; }
// A two-byte activation is kDigitBase times the first byte plus the second. Both are -127 to 127, so that
// either sign can be applied to them.
constexpr int kDigitBase = 255;

BALLAST_INLINE Bytes load_bytes(const uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
BALLAST_INLINE void store_codes(uint8_t* to, Bytes a) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), a);
}
BALLAST_INLINE Bytes bytes_of(int value) { return _mm256_set1_epi8(static_cast<char>(value)); }
BALLAST_INLINE Bytes and_bytes(Bytes a, Bytes b) { return _mm256_and_si256(a, b); }
BALLAST_INLINE Bytes or_bytes(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
BALLAST_INLINE Bytes xor_bytes(Bytes a, Bytes b) { return _mm256_xor_si256(a, b); }
BALLAST_INLINE Bytes add_bytes(Bytes a, Bytes b) { return _mm256_add_epi8(a, b); }
// Saturates at 0.
BALLAST_INLINE Bytes subtract_one(Bytes a) { return _mm256_subs_epu8(a, bytes_of(1)); }
// (a + b + 1) / 2.
BALLAST_INLINE Bytes average_bytes(Bytes a, Bytes b) { return _mm256_avg_epu8(a, b); }
// The caller masks off bits that cross from byte to byte.
template <int kShift>
BALLAST_INLINE Bytes shift_left(Bytes a) {
  return _mm256_slli_epi16(a, kShift);
}
template <int kShift>
BALLAST_INLINE Bytes shift_right(Bytes a) {
  return _mm256_srli_epi16(a, kShift);
}

// One byte per row, repeated four times.
BALLAST_INLINE Bytes byte_of_rows(const uint8_t* from) {
  const __m128i rows = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  const __m256i four_times =
      _mm256_set_epi32(0x07070707, 0x06060606, 0x05050505, 0x04040404, 0x03030303, 0x02020202, 0x01010101, 0);
  return _mm256_shuffle_epi8(_mm256_broadcastq_epi64(rows), four_times);
}
// 16-bit words.
BALLAST_INLINE Bytes words_of(int value) { return _mm256_set1_epi16(static_cast<short>(value)); }
BALLAST_INLINE Bytes add_words(Bytes a, Bytes b) { return _mm256_add_epi16(a, b); }
BALLAST_INLINE Bytes subtract_words(Bytes a, Bytes b) { return _mm256_sub_epi16(a, b); }
BALLAST_INLINE Bytes multiply_words(Bytes a, Bytes b) { return _mm256_mullo_epi16(a, b); }
// Sign-extended.
BALLAST_INLINE Bytes high_bytes_of_words(Bytes a) { return _mm256_srai_epi16(a, 8); }
// The first word of each row from `even`, the second from `odd`.
BALLAST_INLINE Bytes blend_words(Bytes even, Bytes odd) { return _mm256_blend_epi16(even, odd, 0xaa); }

constexpr TableSteps multiplied_steps(CodeTable table) {
  TableSteps steps = steps_of(table);
  if (table != CodeTable::kE2M1) return steps;
  for (int8_t& step : steps.by_code) step = static_cast<int8_t>(step + kE2M1Bias);
  return steps;
}

// The steps of a table by code, as they are multiplied.
template <CodeTable kTable>
BALLAST_INLINE Bytes table_steps(Bytes codes) {
  static constexpr TableSteps kSteps = multiplied_steps(kTable);
  const __m128i steps = _mm_load_si128(reinterpret_cast<const __m128i*>(kSteps.by_code));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(steps), codes);
}
BALLAST_INLINE Bytes wide_codes(Bytes codes) { return _mm256_xor_si256(codes, bytes_of(128)); }
// Signed numbers as they are multiplied.
BALLAST_INLINE Bytes from_signed(Bytes numbers) { return numbers; }
// -1 for each of four weights per row whose bit is set in the lower or upper half of byte kByte of the row's
// signs.
template <int kByte, int kHalf>
BALLAST_INLINE Bytes negative_where(Bytes signs) {
  const __m128i from =
      _mm_setr_epi8(kByte, kByte, kByte, kByte, kByte + 4, kByte + 4, kByte + 4, kByte + 4, kByte + 8,
                    kByte + 8, kByte + 8, kByte + 8, kByte + 12, kByte + 12, kByte + 12, kByte + 12);
  const __m256i bits = _mm256_set1_epi32(0x08040201 << 4 * kHalf);
  const __m256i of_row =
      _mm256_and_si256(_mm256_shuffle_epi8(signs, _mm256_broadcastsi128_si256(from)), bits);
  return _mm256_cmpeq_epi8(of_row, bits);
}
template <int kByte, int kHalf>
BALLAST_INLINE Bytes negate_where(Bytes numbers, Bytes signs) {
  const __m256i negative = negative_where<kByte, kHalf>(signs);
  return _mm256_sub_epi8(_mm256_xor_si256(numbers, negative), negative);
}

// Joins the halves of a vector, of four rows each.
BALLAST_INLINE Bytes join_fours(const __m128i* fours) { return _mm256_set_m128i(fours[1], fours[0]); }

BALLAST_INLINE Floats halves_to_floats(const uint8_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
BALLAST_INLINE void store_halves(uint8_t* to, Floats a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
BALLAST_INLINE Floats bfloats_to_floats(const uint8_t* from) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
// 2 to the power of byte - 128; subnormal for 0 and 1.
BALLAST_INLINE Floats powers_to_floats(const uint8_t* from) {
  const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(bytes, _mm256_set1_epi32(1)), 23);
  const __m256i small = _mm256_min_epi32(bytes, _mm256_set1_epi32(1));
  return _mm256_castsi256_ps(
      _mm256_max_epi32(normal, _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), small)));
}
// Half of each E4M3 float of seven bits: its bits are shifted into those of a half, which is 2^8 / 2 times
// too large.
BALLAST_INLINE Floats e4m3_to_floats(const uint8_t* from) {
  const __m128i bytes = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  return _mm256_mul_ps(_mm256_cvtph_ps(_mm_slli_epi16(bytes, 7)), _mm256_set1_ps(128.0f));
}
BALLAST_INLINE Ints load_int8(const uint8_t* from) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}
BALLAST_INLINE Ints load_uint16(const uint8_t* from) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
BALLAST_INLINE Ints low_nibbles(Ints a) { return _mm256_and_si256(a, _mm256_set1_epi32(15)); }
BALLAST_INLINE Ints high_nibbles(Ints a) { return low_nibbles(_mm256_srli_epi32(a, 4)); }

BALLAST_INLINE Ints zero_ints() { return _mm256_setzero_si256(); }
BALLAST_INLINE Ints add_ints(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
BALLAST_INLINE Ints subtract_ints(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
BALLAST_INLINE Ints broadcast_int(int32_t value) { return _mm256_set1_epi32(value); }
template <int kShift>
BALLAST_INLINE Ints shift_left_ints(Ints a) {
  return _mm256_slli_epi32(a, kShift);
}

template <int kShift>
BALLAST_INLINE Ints shift_right_ints(Ints a) {
  return _mm256_srli_epi32(a, kShift);
}

// Adds the products of the two words of each row.
BALLAST_INLINE Ints add_word_products(Ints sums, Bytes a, Bytes b) {
  return add_ints(sums, _mm256_madd_epi16(a, b));
}
BALLAST_INLINE Bytes broadcast_pair(const int16_t* words) {
  int32_t pair;
  __builtin_memcpy(&pair, words, sizeof(pair));
  return _mm256_set1_epi32(pair);
}

BALLAST_INLINE Ints times_digit_base(Ints a) { return subtract_ints(shift_left_ints<8>(a), a); }

BALLAST_INLINE __m256i broadcast_four(const int8_t* activations) {
  int32_t four;
  __builtin_memcpy(&four, activations, sizeof(four));
  return _mm256_set1_epi32(four);
}

// Fixes the order of additions. The compiler would keep many products in memory and add them up last.
BALLAST_INLINE Bytes fix_order(Bytes sum) {
  __asm__("" : "+x"(sum));
  return sum;
}

// Sums of two products in 16 bits. Signed codes use their magnitude; the sign is applied to the activation.
template <bool kSigned>
BALLAST_INLINE Bytes pair_products(Bytes quad, Bytes four) {
  if (kSigned) return _mm256_maddubs_epi16(_mm256_abs_epi8(quad), _mm256_sign_epi8(four, quad));
  return _mm256_maddubs_epi16(quad, four);
}

// Magnitudes and signs (-1 or 1) of signed codes.
struct SignedCodes {
  Bytes magnitudes;
  Bytes signs;
};
template <bool kSigned>
BALLAST_INLINE Bytes pair_products(const SignedCodes& quad, Bytes four) {
  return _mm256_maddubs_epi16(quad.magnitudes, _mm256_sign_epi8(four, quad.signs));
}

// Stores the first products of a vector in 16 bits, or adds further ones.
template <bool kSigned>
BALLAST_INLINE void add_in_words(Bytes& sum, bool is_first, Bytes quad, Bytes four) {
  const Bytes products = pair_products<kSigned>(quad, four);
  sum = is_first ? products : fix_order(add_words(sum, products));
}

// Adds the dot products of two adjacent quads with eight activations to the sums of each vector.
template <bool kSigned, int kLargest, int kVectors, class Codes>
BALLAST_INLINE void add_two_quads(Ints* sums, const Codes* first, const Codes* second,
                                  const int8_t* activations) {
  const Bytes four = broadcast_four(activations);
  const Bytes next_four = broadcast_four(activations + 4);
#pragma GCC unroll 4
  for (int vector = 0; vector < kVectors; ++vector) {
    const Bytes one = pair_products<kSigned>(first[vector], four);
    const Bytes other = pair_products<kSigned>(second[vector], next_four);
    Ints both;
    if (quads_in_words(kLargest) >= 2)
      both = _mm256_madd_epi16(add_words(one, other), words_of(1));
    else
      both = add_ints(_mm256_madd_epi16(one, words_of(1)), _mm256_madd_epi16(other, words_of(1)));
    sums[vector] = fix_order(add_ints(sums[vector], both));
  }
}

// Two-byte numbers from their digits: first the even columns, then the odd ones.
BALLAST_INLINE void join_digits(const int8_t* digits, int16_t* numbers) {
  const Bytes high = load_bytes(reinterpret_cast<const uint8_t*>(digits));
  const Bytes low = load_bytes(reinterpret_cast<const uint8_t*>(digits + kGroupCols));
  const auto store = [&](int column, Bytes first, Bytes second) {
    const Bytes times_base = subtract_words(shift_left<8>(first), first);
    _mm256_store_si256(reinterpret_cast<__m256i*>(numbers + column * kGroupCols / 2),
                       add_words(times_base, second));
  };
  store(0, high_bytes_of_words(shift_left<8>(high)), high_bytes_of_words(shift_left<8>(low)));
  store(1, high_bytes_of_words(high), high_bytes_of_words(low));
}

// Adds the dot products of a quad of signed codes with four such numbers to the sums of each vector.
template <int kVectors>
BALLAST_INLINE void add_quad_of_numbers(Ints (&sums)[kVectors], const Bytes (&even)[kVectors],
                                        const Bytes (&odd)[kVectors], const int16_t* numbers) {
  const Bytes even_numbers = broadcast_pair(numbers);
  const Bytes odd_numbers = broadcast_pair(numbers + kGroupCols / 2);
#pragma GCC unroll 4
  for (int vector = 0; vector < kVectors; ++vector) {
    sums[vector] = fix_order(add_word_products(sums[vector], even[vector], even_numbers));
    sums[vector] = fix_order(add_word_products(sums[vector], odd[vector], odd_numbers));
  }
}

BALLAST_INLINE Floats load_floats(const float* from) { return _mm256_loadu_ps(from); }
BALLAST_INLINE void store_floats(float* to, Floats a) { _mm256_storeu_ps(to, a); }
BALLAST_INLINE Floats zero_floats() { return _mm256_setzero_ps(); }
BALLAST_INLINE Floats broadcast_float(float value) { return _mm256_set1_ps(value); }
BALLAST_INLINE Floats to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
BALLAST_INLINE Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
BALLAST_INLINE Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
BALLAST_INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
BALLAST_INLINE Floats multiply_subtract_from(Floats a, Floats b, Floats c) {
  return _mm256_fnmadd_ps(a, b, c);
}

BALLAST_INLINE Floats subtract(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
// b if either is NaN.
BALLAST_INLINE Floats larger(Floats a, Floats b) { return _mm256_max_ps(a, b); }
BALLAST_INLINE Floats where_less(Floats a, Floats bound, Floats value, Floats otherwise) {
  return _mm256_blendv_ps(otherwise, value, _mm256_cmp_ps(a, bound, _CMP_LT_OQ));
}
BALLAST_INLINE Floats zero_where_less(Floats a, Floats bound, Floats value) {
  return _mm256_andnot_ps(_mm256_cmp_ps(a, bound, _CMP_LT_OQ), value);
}
// 2 to the power of the signed integer in the low bits of a's fraction.
BALLAST_INLINE Floats exponent_of_low_bits(Floats a) {
  return _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(a), 23), _mm256_set1_epi32(0x3f800000)));
}

typedef int64_t Longs __attribute__((vector_size(32)));
constexpr int kDoubleLanes = 4;
// One bit per lane of the result of a comparison.
BALLAST_INLINE unsigned lane_bits(Longs where) {
  return static_cast<unsigned>(_mm256_movemask_pd(reinterpret_cast<__m256d>(where)));
}

}  // namespace
}  // namespace ballast
