// What is done to activations between two products. AVX2 is wide enough for it under every instruction set.
#pragma once

namespace ballast {
namespace {

BALLAST_INLINE float largest_of(__m256 a) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

BALLAST_INLINE int32_t sum_of(__m128i a) {
  a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
}

BALLAST_INLINE __m128i add_halves(__m256i a) {
  return _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}

// 32 whole numbers within a byte each, in order.
BALLAST_INLINE void store_bytes(const __m256i* numbers, int8_t* to) {
  // Packing works within halves of a vector, so its groups of four come out in the order 0 2 4 6 1 3 5 7.
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(numbers[0], numbers[1]),
                                            _mm256_packs_epi32(numbers[2], numbers[3]));
  const __m256i in_order = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), in_order);
}

// Of the magnitudes; NaN where one is none or infinite.
BALLAST_INLINE float peak_of(const float* x, int64_t num_blocks) {
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  __m256 largest = _mm256_setzero_ps();
  __m256 is_nan = _mm256_setzero_ps();
  for (int64_t i = 0; i < num_blocks * kGroupCols; i += 8) {
    const __m256 values = _mm256_loadu_ps(x + i);
    largest = _mm256_max_ps(largest, _mm256_and_ps(values, magnitude));
    is_nan = _mm256_or_ps(is_nan, _mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  }
  const bool is_finite = _mm256_movemask_ps(is_nan) == 0 && largest_of(largest) <= __FLT_MAX__;
  return is_finite ? largest_of(largest) : __builtin_nanf("");
}

template <int kBytes>
void quantize_activations(const float* x, int64_t num_blocks, int64_t blocks_per_scale, void* out) {
  constexpr float kMost = kMostActivation[kBytes];
  ActivationBlock<kBytes>* block = static_cast<ActivationBlock<kBytes>*>(out);
  float peak = 0.0f;
  for (int64_t index = 0; index < num_blocks; ++index, x += kGroupCols, ++block) {
    if (index % blocks_per_scale == 0) peak = peak_of(x, blocks_per_scale);
    // Below 2^-100 the quotient would overflow; such activations count as zero.
    const __m256 to_numbers = _mm256_set1_ps(peak > 0x1p-100f ? kMost / peak : 0.0f);
    const __m256i kept = _mm256_set1_epi32(peak <= __FLT_MAX__ ? -1 : 0);
    __m256i numbers[4];
    for (int i = 0; i < 4; ++i) {
      const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), to_numbers);
      numbers[i] = _mm256_and_si256(kept, _mm256_cvtps_epi32(scaled));
    }
    if (kBytes == 1) {
      store_bytes(numbers, block->quants);
    } else {
      __m256i high[4];
      __m256i low[4];
      for (int i = 0; i < 4; ++i) {
        if (kDigitBase == 256) {
          high[i] = _mm256_srai_epi32(_mm256_add_epi32(numbers[i], _mm256_set1_epi32(128)), 8);
        } else {
          high[i] = _mm256_cvtps_epi32(
              _mm256_mul_ps(_mm256_cvtepi32_ps(numbers[i]), _mm256_set1_ps(1.0f / kDigitBase)));
        }
        low[i] = _mm256_sub_epi32(numbers[i], _mm256_mullo_epi32(high[i], _mm256_set1_epi32(kDigitBase)));
      }
      store_bytes(high, block->quants);
      store_bytes(low, block->quants + (kBytes - 1) * kGroupCols);
    }
    const int32_t first = sum_of(add_halves(_mm256_add_epi32(numbers[0], numbers[1])));
    const int32_t second = sum_of(add_halves(_mm256_add_epi32(numbers[2], numbers[3])));
    const float scale = peak / kMost;
    block->scale = scale;
    block->negative_sum = -(first + second);
    block->sum = static_cast<float>(first + second);
    block->negative_half_sums[0] = -first;
    block->negative_half_sums[1] = -second;
    block->half_sums[0] = static_cast<float>(first);
    block->half_sums[1] = static_cast<float>(second);
  }
}

// e to the power of a, within 2 units in the last place for |a| <= 87; larger ones count as 87.
BALLAST_INLINE __m256 exp_of(__m256 a) {
  a = _mm256_max_ps(_mm256_set1_ps(-87.0f), _mm256_min_ps(_mm256_set1_ps(87.0f), a));  // NaN stays
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(a, _mm256_set1_ps(1.44269504f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // a - n ln 2, with ln 2 in two parts, of which the first times n is exact.
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693145752f), a);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(1.42860677e-6f), r);
  // Taylor's series to the seventh power: |r| <= 0.35, so the rest is below 6e-9.
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

}  // namespace
}  // namespace ballast
