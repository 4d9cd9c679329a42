// Operations on activations between two products. AVX2 is wide enough for them on every instruction set.
#pragma once

namespace ballast {
namespace {

BALLAST_INLINE int32_t largest_of(__m256i a) {
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

BALLAST_INLINE int32_t sum_of(__m128i a) {
  a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
}

BALLAST_INLINE __m128i add_halves(__m256i a) {
  return _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}

// Stores 32 integers that fit in bytes, packed to 16 bits from four vectors in order. Packing works within
// the halves of a vector, so groups of four come out as 0 2 4 6 1 3 5 7.
BALLAST_INLINE void store_bytes(__m256i first, __m256i second, int8_t* to) {
  const __m256i packed = _mm256_packs_epi16(first, second);
  const __m256i in_order = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), in_order);
}

// The high digit of each number, for kBytes 2.
BALLAST_INLINE __m256i high_digits(__m256i numbers) {
  if (kDigitBase == 256) return _mm256_srai_epi16(_mm256_add_epi16(numbers, _mm256_set1_epi16(128)), 8);
  // Moved to 0…65024, so that the low digit is a remainder. The quotient by 255 is (x + 1 + x / 256) / 256.
  const __m256i x = _mm256_add_epi16(numbers, _mm256_set1_epi16(32512));
  const __m256i sum = _mm256_add_epi16(_mm256_add_epi16(x, _mm256_srli_epi16(x, 8)), _mm256_set1_epi16(1));
  return _mm256_sub_epi16(_mm256_srli_epi16(sum, 8), _mm256_set1_epi16(127));
}

// 32 numbers packed for store_bytes.
template <int kBytes>
BALLAST_INLINE void store_digits(__m256i first, __m256i second, int8_t* to) {
  if (kBytes == 1) return store_bytes(first, second, to);
  const __m256i base = _mm256_set1_epi16(kDigitBase);
  const __m256i first_high = high_digits(first);
  const __m256i second_high = high_digits(second);
  store_bytes(first_high, second_high, to);
  store_bytes(_mm256_sub_epi16(first, _mm256_mullo_epi16(first_high, base)),
              _mm256_sub_epi16(second, _mm256_mullo_epi16(second_high, base)), to + kGroupCols);
}

// The largest magnitude; NaN if one is NaN or infinite. Magnitudes compare like their bits, and values that
// are not finite are the largest.
BALLAST_INLINE float peak_of(const float* x, int64_t num_blocks) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i largest[2] = {};
  for (int64_t i = 0; i < num_blocks * kGroupCols; i += 16) {
    for (int half = 0; half < 2; ++half) {
      const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x + i + 8 * half));
      largest[half] = _mm256_max_epi32(largest[half], _mm256_and_si256(bits, magnitude));
    }
  }
  const int32_t bits = largest_of(_mm256_max_epi32(largest[0], largest[1]));
  float peak;
  __builtin_memcpy(&peak, &bits, sizeof(peak));
  return peak <= __FLT_MAX__ ? peak : __builtin_nanf("");
}

// The numbers of negative_half_sums.
template <int kBytes>
BALLAST_INLINE void sum_digits(ActivationBlock<kBytes>& block) {
  constexpr int32_t kMoved = 128 * kGroupCols / 2;  // to unsigned bytes, which one instruction adds up
  const __m256i first_digits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block.quants));
  const __m256i moved = _mm256_xor_si256(first_digits, _mm256_set1_epi8(-128));
  const __m256i eights = _mm256_sad_epu8(moved, _mm256_setzero_si256());
  const __m256i sums = _mm256_add_epi64(eights, _mm256_srli_si256(eights, 8));
  const int32_t halves[] = {_mm256_extract_epi32(sums, 0), _mm256_extract_epi32(sums, 4)};
  for (int half = 0; half < 2; ++half) {
    const int32_t first = kMoved - halves[half];
    block.negative_half_digits[0][half] = static_cast<int16_t>(first);
    if constexpr (kBytes == 2)
      block.negative_half_digits[1][half] =
          static_cast<int16_t>(block.negative_half_sums[half] - kDigitBase * first);
  }
}

template <int kBytes>
void quantize_activations(const float* x, int64_t num_blocks, int64_t blocks_per_scale, void* out) {
  constexpr float kMost = kMostActivation[kBytes];
  const __m256i ones = _mm256_set1_epi16(1);
  ActivationBlock<kBytes>* block = static_cast<ActivationBlock<kBytes>*>(out);
  float scale = 0.0f;
  __m256 to_numbers = _mm256_setzero_ps();
  __m256i kept = _mm256_setzero_si256();
  for (int64_t index = 0; index < num_blocks; ++index, x += kGroupCols, ++block) {
    if (index % blocks_per_scale == 0) {
      const float peak = peak_of(x, blocks_per_scale);
      scale = peak / kMost;
      // Below 2^-100 the quotient would overflow; these activations count as zero.
      to_numbers = _mm256_set1_ps(peak > 0x1p-100f ? kMost / peak : 0.0f);
      kept = _mm256_set1_epi32(peak <= __FLT_MAX__ ? -1 : 0);
    }
    __m256i numbers[4];
    for (int i = 0; i < 4; ++i) {
      const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), to_numbers);
      numbers[i] = _mm256_and_si256(kept, _mm256_cvtps_epi32(scaled));
    }
    const __m256i first = _mm256_packs_epi32(numbers[0], numbers[1]);
    const __m256i second = _mm256_packs_epi32(numbers[2], numbers[3]);
    store_digits<kBytes>(first, second, block->quants);
    const int32_t sum_of_first = sum_of(add_halves(_mm256_madd_epi16(first, ones)));
    const int32_t sum_of_second = sum_of(add_halves(_mm256_madd_epi16(second, ones)));
    block->scale = scale;
    block->negative_sum = -(sum_of_first + sum_of_second);
    block->sum = static_cast<float>(sum_of_first + sum_of_second);
    block->negative_half_sums[0] = -sum_of_first;
    block->negative_half_sums[1] = -sum_of_second;
    block->half_sums[0] = static_cast<float>(sum_of_first);
    block->half_sums[1] = static_cast<float>(sum_of_second);
    sum_digits<kBytes>(*block);
  }
}

// e^a, within 2 units in the last place for |a| <= 87; larger magnitudes count as 87.
BALLAST_INLINE __m256 exp_of(__m256 a) {
  a = _mm256_max_ps(_mm256_set1_ps(-87.0f), _mm256_min_ps(_mm256_set1_ps(87.0f), a));  // keeps NaN
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(a, _mm256_set1_ps(1.44269504f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // a - n ln 2. ln 2 is split in two, and n times the first summand is exact.
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693145752f), a);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(1.42860677e-6f), r);
  // Taylor series to the seventh power: |r| <= 0.35, so the remainder is below 6e-9.
  __m256 sum = _mm256_set1_ps(1.0f / 5040.0f);
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(1.0f / 720.0f));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(1.0f / 120.0f));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(1.0f / 24.0f));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(1.0f / 6.0f));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(0.5f));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(1.0f));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(1.0f));
  const __m256i power =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(sum, _mm256_castsi256_ps(power));
}

void silu_times(const float* gate, const float* up, int64_t n, float* out) {
  const __m256 one = _mm256_set1_ps(1.0f);
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 g = _mm256_loadu_ps(gate + i);
    const __m256 below = _mm256_add_ps(one, exp_of(_mm256_sub_ps(_mm256_setzero_ps(), g)));
    _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_div_ps(g, below), _mm256_loadu_ps(up + i)));
  }
}

void sigmoid_times(const float* gate, const float* up, int64_t n, float* out) {
  const __m256 one = _mm256_set1_ps(1.0f);
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 below =
        _mm256_add_ps(one, exp_of(_mm256_sub_ps(_mm256_setzero_ps(), _mm256_loadu_ps(gate + i))));
    _mm256_storeu_ps(out + i, _mm256_div_ps(_mm256_loadu_ps(up + i), below));
  }
}

// ln(1 + a) for 0 <= a <= 1, by the series of 2 artanh(a / (2 + a)): the remainder is below 1e-9.
BALLAST_INLINE __m256 log_of_one_and(__m256 a) {
  const __m256 z = _mm256_div_ps(a, _mm256_add_ps(a, _mm256_set1_ps(2.0f)));
  const __m256 square = _mm256_mul_ps(z, z);
  __m256 sum = _mm256_set1_ps(2.0f / 15.0f);
  sum = _mm256_fmadd_ps(sum, square, _mm256_set1_ps(2.0f / 13.0f));
  sum = _mm256_fmadd_ps(sum, square, _mm256_set1_ps(2.0f / 11.0f));
  sum = _mm256_fmadd_ps(sum, square, _mm256_set1_ps(2.0f / 9.0f));
  sum = _mm256_fmadd_ps(sum, square, _mm256_set1_ps(2.0f / 7.0f));
  sum = _mm256_fmadd_ps(sum, square, _mm256_set1_ps(2.0f / 5.0f));
  sum = _mm256_fmadd_ps(sum, square, _mm256_set1_ps(2.0f / 3.0f));
  sum = _mm256_fmadd_ps(sum, square, _mm256_set1_ps(2.0f));
  return _mm256_mul_ps(sum, z);
}

void softplus_decays(const float* x, const float* shift, float rate, int64_t n, float* out) {
  const __m256 rates = _mm256_set1_ps(rate);
  const __m256 sign = _mm256_set1_ps(-0.0f);
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 a = _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(shift + i));
    const __m256 rest = log_of_one_and(exp_of(_mm256_or_ps(a, sign)));                   // of e^-|a|
    const __m256 softplus = _mm256_add_ps(_mm256_max_ps(_mm256_setzero_ps(), a), rest);  // keeps NaN
    _mm256_storeu_ps(out + i, exp_of(_mm256_mul_ps(rates, softplus)));
  }
}

void bounded_decays(const float* x, const float* shift, float rate, float bound, int64_t n, float* out) {
  const __m256 rates = _mm256_set1_ps(rate);
  const __m256 bounds = _mm256_set1_ps(bound);
  const __m256 one = _mm256_set1_ps(1.0f);
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 a = _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(shift + i));
    const __m256 below = _mm256_add_ps(one, exp_of(_mm256_mul_ps(rates, a)));
    _mm256_storeu_ps(out + i, exp_of(_mm256_div_ps(bounds, below)));
  }
}

void clamped_swiglu(const ClampedSwiglu& unit, const float* gate, const float* up, int64_t n, float* out) {
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 limit = _mm256_set1_ps(unit.limit);
  const __m256 lowest = _mm256_set1_ps(-unit.limit);
  const __m256 alpha = _mm256_set1_ps(-unit.alpha);
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 g = _mm256_min_ps(limit, _mm256_loadu_ps(gate + i));  // NaN stays
    const __m256 u = _mm256_max_ps(lowest, _mm256_min_ps(limit, _mm256_loadu_ps(up + i)));
    const __m256 below = _mm256_add_ps(one, exp_of(_mm256_mul_ps(alpha, g)));
    _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_div_ps(g, below), _mm256_add_ps(u, one)));
  }
}

}  // namespace
}  // namespace ballast
