// Adds up all groups of a row for several tokens.
//
// The order of float sums is fixed for every row and token and does not depend on the number of tokens.
// Columns whose activations share a scale (PanelRun::blocks_per_scale) form one sum, sub-block after
// sub-block: the integer dot product times the weight scale, added with one rounding, then the minimum. These
// sums, times the scale of the activations, are added with one rounding each. If codes are scaled
// (QuantLayout::scales_codes), a super-block is one sub-block.
#pragma once

#include "cpu/panels/accumulate_sub_blocks-inl.h"
#include "cpu/panels/accumulate_super_blocks-inl.h"

namespace ballast {
namespace {

BALLAST_INLINE float* vector_products(const PanelProducts& out, int token, int vector) {
  return products_of(out, panel_index(vector)) + token * kPanelRows + row_vector_of(vector) * kVectorRows;
}

// out [panel][token][16 rows] += the groups of `weights` times the tokens. The first groups overwrite `out`.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kBytes, class Weights>
BALLAST_INLINE void multiply_tokens(const Weights& weights, Groups groups, int64_t groups_per_scale,
                                    NextPrefetch& shared_prefetch, const void* const* tokens,
                                    const PanelProducts& out) {
  NextPrefetch next_prefetch = shared_prefetch;
  const int64_t per_scale = kLayout.is_flat() ? groups_per_scale : kSuperGroups;
  const ActivationBlock<kBytes>* blocks[kTokens];
  Floats totals[kTokens][kVectors];
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
    blocks[token] = static_cast<const ActivationBlock<kBytes>*>(tokens[token]);
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      totals[token][vector] =
          groups.begin == 0 ? zero_floats() : load_floats(vector_products(out, token, vector));
    }
  }
  for (int64_t begin = groups.begin; begin < groups.end; begin += per_scale) {
    Floats sums[kTokens][kVectors];
    if constexpr (!kLayout.scales_codes())
      sum_sub_blocks<kLayout, kVectors, kTokens, kBytes>(weights, begin, begin + per_scale, next_prefetch,
                                                         blocks, sums);
    else if constexpr (scales_dots<kBytes>(static_cast<const Weights*>(nullptr), kTokens))
      sum_block_of_dots<kLayout, kVectors, kTokens, kBytes>(weights, begin, next_prefetch, blocks, sums);
    else
      sum_scaled_block<kLayout, kVectors, kTokens, kBytes>(weights, begin, next_prefetch, blocks, sums);
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) {
      const Floats scale = broadcast_float(blocks[token][begin].scale);
#pragma GCC unroll 4
      for (int vector = 0; vector < kVectors; ++vector)
        totals[token][vector] = multiply_add(sums[token][vector], scale, totals[token][vector]);
    }
  }
#pragma GCC unroll 4
  for (int vector = 0; vector < kVectors; ++vector) {
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token)
      store_floats(vector_products(out, token, vector), totals[token][vector]);
  }
  shared_prefetch = next_prefetch;
}

// The next smaller number of tokens with a function of its own. Under the address sanitizer, which
// instruments each one slowly, only the largest and the smallest exist.
constexpr int fewer_tokens(int num_tokens) {
#ifdef __SANITIZE_ADDRESS__
  return num_tokens > 1 ? 1 : 0;
#else
  return num_tokens - 1;
#endif
}

// Multiplies kTokens tokens at a time, as many as registers hold, and then the rest together.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kBytes, class Weights>
void multiply_rest(const Weights& weights, Groups groups, int64_t groups_per_scale,
                   NextPrefetch& next_prefetch, const void* const* tokens, int64_t num_tokens,
                   PanelProducts out) {
  for (; num_tokens >= kTokens; num_tokens -= kTokens, tokens += kTokens, out.first += kTokens * kPanelRows)
    multiply_tokens<kLayout, kVectors, kTokens, kBytes>(weights, groups, groups_per_scale, next_prefetch,
                                                        tokens, out);
  if constexpr (kTokens > 1) {
    if (num_tokens > 0)
      multiply_rest<kLayout, kVectors, fewer_tokens(kTokens), kBytes>(weights, groups, groups_per_scale,
                                                                      next_prefetch, tokens, num_tokens, out);
  }
}

}  // namespace
}  // namespace ballast
