// Adds up all groups of a row for several tokens.
//
// Order of the float sums, for every row and token and whatever the number of tokens. Columns whose
// activations share a scale (PanelRun::blocks_per_scale) form a sum of their own: sub-block after
// sub-block, integer dot product times weight scale added with one rounding, then the minimum's part. Such
// sums, times the activations' scale, are added up with one rounding each. Where codes are scaled first
// (QuantLayout::scales_codes), a super-block is one sub-block.
#pragma once

#include "cpu/panels/accumulate_sub_blocks-inl.h"
#include "cpu/panels/accumulate_super_blocks-inl.h"

namespace ballast {
namespace {

BALLAST_INLINE float* vector_products(const PanelProducts& out, int token, int vector) {
  return products_of(out, panel_index(vector)) + token * kPanelRows + part_index(vector) * kVectorRows;
}

// out [panel][token][16 rows] = what came before them, if anything, + the groups of `weights` times the
// tokens.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kBytes, class Weights>
BALLAST_INLINE void multiply_tokens(const Weights& weights, Groups groups, int64_t groups_per_scale,
                                    Ahead& shares, const void* const* tokens, const PanelProducts& out) {
  Ahead ahead = shares;
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
      sum_sub_blocks<kLayout, kVectors, kTokens, kBytes>(weights, begin, begin + per_scale, ahead, blocks,
                                                         sums);
    else if constexpr (scales_dots<kBytes>(static_cast<const Weights*>(nullptr), kTokens))
      sum_block_of_dots<kLayout, kVectors, kTokens, kBytes>(weights, begin, ahead, blocks, sums);
    else
      sum_scaled_block<kLayout, kVectors, kTokens, kBytes>(weights, begin, ahead, blocks, sums);
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
  shares = ahead;
}

// The next number of tokens that is a function of its own. Each one takes long to instrument, so under the
// sanitizer of addresses there are the widest and the narrowest alone.
constexpr int fewer_tokens(int num_tokens) {
#ifdef __SANITIZE_ADDRESS__
  return num_tokens > 1 ? 1 : 0;
#else
  return num_tokens - 1;
#endif
}

// As many at a time as registers hold, then the rest together.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kBytes, class Weights>
void multiply_rest(const Weights& weights, Groups groups, int64_t groups_per_scale, Ahead& ahead,
                   const void* const* tokens, int64_t num_tokens, PanelProducts out) {
  for (; num_tokens >= kTokens; num_tokens -= kTokens, tokens += kTokens, out.first += kTokens * kPanelRows)
    multiply_tokens<kLayout, kVectors, kTokens, kBytes>(weights, groups, groups_per_scale, ahead, tokens,
                                                        out);
  if constexpr (kTokens > 1) {
    if (num_tokens > 0)
      multiply_rest<kLayout, kVectors, fewer_tokens(kTokens), kBytes>(weights, groups, groups_per_scale,
                                                                      ahead, tokens, num_tokens, out);
  }
}

}  // namespace
}  // namespace ballast
