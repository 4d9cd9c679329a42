// Adds up sub-blocks as floats: each dot product is multiplied by the scale of its sub-block.
#pragma once

#include "cpu/kernels.h"
#include "cpu/panels/dot-inl.h"
#include "cpu/panels/prefetch-inl.h"
#include "cpu/shared/integers-inl.h"

namespace ballast {
namespace {

template <const QuantLayout& kLayout>
BALLAST_INLINE Ints first_sum(int32_t negative_sum) {
  constexpr int kBias = bias_of(kLayout);
  if constexpr (kBias > 0) return shift_left_ints<log2_of(kBias)>(broadcast_int(negative_sum));
  return zero_ints();
}

template <const QuantLayout& kLayout>
BALLAST_INLINE Floats add_minimum(Floats minimum, float sum_of_numbers, Floats sum) {
  if constexpr (!kLayout.has_minimum) return sum;
  if constexpr (kLayout.scales == Scales::kFlat)
    return multiply_add(minimum, broadcast_float(sum_of_numbers), sum);
  return multiply_subtract_from(minimum, broadcast_float(sum_of_numbers), sum);
}

// sums [token][vector] += a sub-block.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kSub, int kBytes, class Group>
BALLAST_INLINE void add_sub_block(const Group& group, const ActivationBlock<kBytes>* const* blocks,
                                  int64_t index, Floats (*sums)[kVectors]) {
  constexpr bool kWhole = kLayout.subs_per_group() == 1;
  constexpr int kQuads = kGroupQuads / kLayout.subs_per_group();
  constexpr int kFirst = kSub * kQuads;
  constexpr int kChains = num_chains<kLayout, kVectors, kTokens>();
  constexpr bool kJoins = joins_digits(kLayout, kBytes);
  Ints dots[kTokens][kChains][kJoins ? 1 : kBytes][kVectors];
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
    const ActivationBlock<kBytes>& block = blocks[token][index];
    begin_dots(first_sum<kLayout>(kWhole ? block.negative_sum : block.negative_half_sums[kSub]), dots[token]);
  }
  if constexpr (kJoins) {
    alignas(kVectorBytes) int16_t numbers[kTokens][kGroupCols];
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) join_digits(blocks[token][index].quants, numbers[token]);
    add_quads_of_numbers<kVectors, kTokens, kFirst, kFirst + kQuads>(group, numbers, dots);
  } else {
    add_quads<kLayout, kVectors, kTokens, kBytes, kFirst, kFirst + kQuads>(group, blocks, index, dots);
  }
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
    const ActivationBlock<kBytes>& block = blocks[token][index];
    const float sum_of_numbers = kWhole ? block.sum : block.half_sums[kSub];
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      Floats& sum = sums[token][vector];
      sum = multiply_add(to_floats(end_dots(dots[token], vector)), scale_of(group, vector, kSub), sum);
      if constexpr (kLayout.has_minimum)
        sum = add_minimum<kLayout>(minimum_of(group, vector, kSub), sum_of_numbers, sum);
    }
  }
}

// sums [token][vector] = the groups begin…end, which share an activation scale.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kBytes, class Weights>
BALLAST_INLINE void sum_sub_blocks(const Weights& weights, int64_t begin, int64_t end,
                                   NextPrefetch& next_prefetch, const ActivationBlock<kBytes>* const* blocks,
                                   Floats (*sums)[kVectors]) {
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) sums[token][vector] = zero_floats();
  }
  const auto block = block_at(weights, begin);
  for (int64_t index = begin; index < end; ++index) {
    if (--next_prefetch.wait == 0) prefetch_next_slice<kLayout, kVectors / kPanelVectors>(next_prefetch);
    const auto group = group_at(weights, block, index);
    add_sub_block<kLayout, kVectors, kTokens, 0>(group, blocks, index, sums);
    if constexpr (kLayout.subs_per_group() == 2)
      add_sub_block<kLayout, kVectors, kTokens, 1>(group, blocks, index, sums);
  }
}

}  // namespace
}  // namespace ballast
