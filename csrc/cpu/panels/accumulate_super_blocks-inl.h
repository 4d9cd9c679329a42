// Adds up a super-block in integers. Its scales are multiplied into the codes or into the dot products.
#pragma once

#include "cpu/panels/decoded_panels-inl.h"
#include "cpu/panels/dot-inl.h"
#include "cpu/panels/packed_panels-inl.h"
#include "cpu/panels/scaled_codes-inl.h"

namespace ballast {
namespace {

// The sums of the two halves of a group for one byte of the activations.
template <int kBytes>
BALLAST_INLINE Bytes half_digits(const ActivationBlock<kBytes>& block, int plane) {
  return broadcast_pair(block.negative_half_digits[plane]);
}

// Whether dot products are scaled instead of codes. One instruction scales and adds a dot product of a sub-
// block. This is faster with few tokens, and always if signed codes are slow to multiply.
template <int kBytes, const QuantLayout& kLayout, int kVectors>
constexpr bool scales_dots(const PackedPanels<kLayout, kVectors>*, int num_tokens) {
  return !multiplies_scaled_codes<kLayout>() || kVectors * num_tokens * kBytes <= 4;
}
template <int kBytes, const QuantLayout& kLayout, int kVectors>
constexpr bool scales_dots(const DecodedPanels<kLayout, kVectors>*, int) {
  return !multiplies_scaled_codes<kLayout>();
}

// totals [token][1][plane][vector] += a sub-block.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kBytes, int kSub, class Group>
BALLAST_INLINE void add_scaled_dots(const Group& group, const ActivationBlock<kBytes>* const* blocks,
                                    int64_t index, const Bytes* pairs, Ints (*totals)[1][kBytes][kVectors]) {
  constexpr int kQuads = kGroupQuads / kLayout.subs_per_group();
  constexpr int kFirst = kSub * kQuads;
  Ints dots[kTokens][num_chains<kLayout, kVectors, kTokens>()][kBytes][kVectors];
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) begin_dots(zero_ints(), dots[token]);
  add_quads<kLayout, kVectors, kTokens, kBytes, kFirst, kFirst + kQuads>(group, blocks, index, dots);
#pragma GCC unroll 4
  for (int vector = 0; vector < kVectors; ++vector) {
    const Ints scale = word_of_pair<kSub>(scales_of_pair<kLayout>(pairs[vector]));
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 2
      for (int plane = 0; plane < kBytes; ++plane) {
        Ints& total = totals[token][0][plane][vector];
        total = add_word_products(total, dots[token][0][plane][vector], scale);
      }
    }
  }
}

// The same sums as sum_scaled_block, from scaled dot products.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kBytes, class Weights>
BALLAST_INLINE void sum_block_of_dots(const Weights& weights, int64_t begin, NextPrefetch& next_prefetch,
                                      const ActivationBlock<kBytes>* const* blocks,
                                      Floats (*sums)[kVectors]) {
  Ints totals[kTokens][1][kBytes][kVectors];
  Ints minima[kTokens][1][kBytes][kVectors];
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
    begin_dots(zero_ints(), totals[token]);
    begin_dots(zero_ints(), minima[token]);
  }
  const auto block = block_at(weights, begin);
  for (int64_t index = begin; index < begin + kSuperGroups; ++index) {
    if (--next_prefetch.wait == 0) prefetch_next_slice<kLayout, kVectors / kPanelVectors>(next_prefetch);
    const auto group = group_at(weights, block, index);
    Bytes pairs[kVectors];
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) pairs[vector] = pair_at(weights, block, index, vector);
    add_scaled_dots<kLayout, kVectors, kTokens, kBytes, 0>(group, blocks, index, pairs, totals);
    add_scaled_dots<kLayout, kVectors, kTokens, kBytes, 1>(group, blocks, index, pairs, totals);
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      const Bytes words = offsets_of_pair<kLayout>(pairs[vector]);
#pragma GCC unroll 16
      for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 2
        for (int plane = 0; plane < kBytes; ++plane) {
          Ints& sum = kLayout.has_minimum ? minima[token][0][plane][vector] : totals[token][0][plane][vector];
          sum = add_word_products(sum, words, half_digits(blocks[token][index], plane));
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      Floats sum = multiply(to_floats(end_dots(totals[token], vector)), block_scale(weights, block, vector));
      if constexpr (kLayout.has_minimum)
        sum = multiply_add(to_floats(end_dots(minima[token], vector)), block_minimum(weights, block, vector),
                           sum);
      sums[token][vector] = sum;
    }
  }
}

// The initial sums for signed codes that were made unsigned.
template <const QuantLayout& kLayout, int kBytes>
BALLAST_INLINE Ints first_sum_of_block(const ActivationBlock<kBytes>* blocks) {
  if constexpr (!kLayout.negates_codes()) return zero_ints();
  int32_t negative_sum = 0;
  for (int64_t index = 0; index < kSuperGroups; ++index) negative_sum += blocks[index].negative_sum;
  return shift_left_ints<7>(broadcast_int(negative_sum));
}

// sums [token][vector] of a super-block with scaled codes. They stay below 2^31: 256 products of 128 and a
// two-byte number.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kBytes, class Weights>
BALLAST_INLINE void sum_scaled_block(const Weights& weights, int64_t begin, NextPrefetch& next_prefetch,
                                     const ActivationBlock<kBytes>* const* blocks, Floats (*sums)[kVectors]) {
  Ints dots[kTokens][num_chains<kLayout, kVectors, kTokens>()][kBytes][kVectors];
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token)
    begin_dots(first_sum_of_block<kLayout>(blocks[token] + begin), dots[token]);
  const auto block = block_at(weights, begin);
  for (int64_t index = begin; index < begin + kSuperGroups; ++index) {
    if (--next_prefetch.wait == 0) prefetch_next_slice<kLayout, kVectors / kPanelVectors>(next_prefetch);
    const auto group = with_factors(group_at(weights, block, index));
    add_quads<kLayout, kVectors, kTokens, kBytes, 0, kGroupQuads>(group, blocks, index, dots);
  }
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      const Ints dot = end_dots(dots[token], vector);
      sums[token][vector] =
          multiply(to_floats(kLayout.negates_codes() ? subtract_ints(zero_ints(), dot) : dot),
                   block_scale(weights, block, vector));
    }
  }
  if constexpr (kLayout.has_minimum) {
    // Separate from the products, to save registers.
    Ints minima[kTokens][1][kBytes][kVectors];
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) begin_dots(zero_ints(), minima[token]);
    for (int64_t index = begin; index < begin + kSuperGroups; ++index) {
#pragma GCC unroll 4
      for (int vector = 0; vector < kVectors; ++vector) {
        const Bytes words = minima_of_pair(pair_at(weights, block, index, vector));
#pragma GCC unroll 16
        for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 2
          for (int plane = 0; plane < kBytes; ++plane) {
            Ints& sum = minima[token][0][plane][vector];
            sum = add_word_products(sum, words, half_digits(blocks[token][index], plane));
          }
        }
      }
    }
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 4
      for (int vector = 0; vector < kVectors; ++vector)
        sums[token][vector] = multiply_add(to_floats(end_dots(minima[token], vector)),
                                           block_minimum(weights, block, vector), sums[token][vector]);
    }
  }
}

}  // namespace
}  // namespace ballast
