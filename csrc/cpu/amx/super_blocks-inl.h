// Multiplies panels whose blocks of 256 columns have one float scale, like the activations of these columns.
// A block is added up in integers and scaled once, so tiles and vectors give the same bits.
#pragma once

#include "cpu/panels/decode_codes-inl.h"
#include "cpu/shared/integers-inl.h"

namespace ballast {
namespace {

// Scale and minimum of a block, per row.
struct BlockScales {
  Floats scale;
  Floats minimum;
};

BALLAST_INLINE const uint8_t* scales_of_groups(const uint8_t* record) { return record + 4 * kPanelRows; }
BALLAST_INLINE const uint8_t* minima_of_groups(const uint8_t* record) {
  return scales_of_groups(record) + kSuperGroups * kPanelRows;
}

BALLAST_INLINE BlockScales block_scales(const uint8_t* record) {
  return {halves_to_floats(record), halves_to_floats(record + 2 * kPanelRows)};
}

// total += the result of one block of a token. `sums` [byte] and `minimum` include the scales of the sub-
// blocks. The largest values, 31 · 63 · 128 · 256 and 63 · 32512 · 256, are below 2^31.
template <int kBytes>
BALLAST_INLINE Floats add_block(const Ints (&sums)[kBytes], Ints minimum, const BlockScales& scales,
                                float token_scale, Floats total) {
  Floats number = to_floats(sums[0]);
  if constexpr (kBytes == 2) number = multiply_add(broadcast_float(kDigitBase), number, to_floats(sums[1]));
  const Floats scaled =
      multiply_subtract_from(scales.minimum, to_floats(minimum), multiply(scales.scale, number));
  return multiply_add(scaled, broadcast_float(token_scale), total);
}

template <const QuantLayout& kLayout, int kTokens, int kBytes, int kQuad = 0>
BALLAST_INLINE void add_group(const uint8_t* group, const ActivationBlock<kBytes>* const* blocks,
                              int64_t index, Ints (*dots)[kBytes]) {
  if constexpr (kQuad < kGroupQuads) {
    const Bytes codes = decode_quad<kLayout, kQuad>(group);
#pragma GCC unroll 8
    for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 2
      for (int plane = 0; plane < kBytes; ++plane) {
        const int8_t* four = blocks[token][index].quants + plane * kGroupCols + 4 * kQuad;
        dots[token][plane] = _mm512_dpbusd_epi32(dots[token][plane], codes, broadcast_four(four));
      }
    }
    add_group<kLayout, kTokens, kBytes, kQuad + 1>(group, blocks, index, dots);
  }
}

template <const QuantLayout& kLayout, int kTokens, int kBytes>
BALLAST_INLINE void multiply_few_blocks(const PanelRun& run, int64_t index, bool is_first_pass,
                                        const void* const* tokens, float* out) {
  const ActivationBlock<kBytes>* blocks[kTokens];
  Floats totals[kTokens];
#pragma GCC unroll 8
  for (int token = 0; token < kTokens; ++token) {
    blocks[token] = static_cast<const ActivationBlock<kBytes>*>(tokens[token]);
    totals[token] = zero_floats();
  }
  const uint8_t* const panel = panel_of(run, index);
  const PanelPrefetch own_prefetch =
      prefetch_ahead(run, panel, index + 1 < run.count ? panel_of(run, index + 1) : run.next);
  const uint8_t* record = panel;
  const uint8_t* group = record + kLayout.scale_bytes(run.cols);
  for (int64_t first = 0; first < run.cols / kGroupCols;
       first += kSuperGroups, record += kLayout.scale_stride()) {
    Ints sums[kTokens][kBytes];
    Ints minima[kTokens];
#pragma GCC unroll 8
    for (int token = 0; token < kTokens; ++token) {
      minima[token] = zero_ints();
      for (Ints& sum : sums[token]) sum = zero_ints();
    }
    for (int i = 0; i < kSuperGroups; ++i, group += kLayout.group_bytes()) {
      if (is_first_pass)
        prefetch(prefetch_address<kLayout>(own_prefetch, first + i), bytes_per_group<kLayout>(),
                 own_prefetch.to);
      Ints dots[kTokens][kBytes] = {};
      add_group<kLayout, kTokens, kBytes>(group, blocks, first + i, dots);
      const Ints scale = load_int8(scales_of_groups(record) + i * kPanelRows);
      const Ints minimum = load_int8(minima_of_groups(record) + i * kPanelRows);
#pragma GCC unroll 8
      for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 2
        for (int plane = 0; plane < kBytes; ++plane) {
          sums[token][plane] = add_ints(sums[token][plane], _mm512_mullo_epi32(dots[token][plane], scale));
        }
        const Ints negative = broadcast_int(blocks[token][first + i].negative_sum);
        minima[token] = subtract_ints(minima[token], _mm512_mullo_epi32(minimum, negative));
      }
    }
    const BlockScales scales = block_scales(record);
#pragma GCC unroll 8
    for (int token = 0; token < kTokens; ++token) {
      totals[token] =
          add_block<kBytes>(sums[token], minima[token], scales, blocks[token][first].scale, totals[token]);
    }
  }
#pragma GCC unroll 8
  for (int token = 0; token < kTokens; ++token) store_floats(out + token * kPanelRows, totals[token]);
}

constexpr int kFewTokens = 4;

// One panel, kFewTokens at a time.
template <const QuantLayout& kLayout, int kBytes, int kTokens = kFewTokens>
void multiply_panel(const PanelRun& run, int64_t index, bool is_first_pass, const void* const* tokens,
                    int64_t num_tokens, float* out) {
  for (; num_tokens >= kTokens; num_tokens -= kTokens, tokens += kTokens, out += kTokens * kPanelRows) {
    multiply_few_blocks<kLayout, kTokens, kBytes>(run, index, is_first_pass, tokens, out);
    is_first_pass = false;
  }
  if constexpr (kTokens > 1) {
    if (num_tokens > 0)
      multiply_panel<kLayout, kBytes, kTokens - 1>(run, index, is_first_pass, tokens, num_tokens, out);
  }
}

// Uses vectors only.
template <const QuantLayout& kLayout, int kBytes>
void multiply_in_vectors(const PanelRun& run, const void* const* tokens, int64_t num_tokens,
                         const PanelProducts& out) {
  if (num_tokens == 0) return;
  prefetch_begin(run, 0);
  for (int64_t index = 0; index < run.count; ++index)
    multiply_panel<kLayout, kBytes>(run, index, true, tokens, num_tokens, products_of(out, index));
}

}  // namespace
}  // namespace ballast
