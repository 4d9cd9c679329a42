// Multiplies a run of quantized panels with tokens, and chooses how: from packed or decoded panels.
#pragma once

#include "cpu/kernels.h"
#include "cpu/panels/accumulate_tokens-inl.h"
#include "cpu/panels/decoded_panels-inl.h"
#include "cpu/panels/packed_panels-inl.h"
#include "cpu/shared/integers-inl.h"

namespace ballast {
namespace {

// Panels that are decoded as they are multiplied, with kTokens at a time.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kBytes>
BALLAST_NOINLINE void multiply_few(const PanelRun& run, int64_t index, const void* const* tokens,
                                   int64_t num_tokens, const PanelProducts& out) {
  const int64_t num_passes = divide_up(num_tokens, kTokens);
  PackedPanels<kLayout, kVectors> panels(run, index, num_passes);
  for (int64_t pass = 0; pass < num_passes; ++pass) {
    const int64_t begin = num_tokens * pass / num_passes;
    const int64_t end = num_tokens * (pass + 1) / num_passes;
    multiply_rest<kLayout, kVectors, kTokens, kBytes>(
        panels, {0, run.cols / kGroupCols}, run.blocks_per_scale, panels.ahead, tokens + begin, end - begin,
        {products_of(out, index) + begin * kPanelRows, out.panel_stride});
    panels.asking = asking_for_nothing();  // the first pass has asked
  }
}

// Where a super-block is summed up in whole numbers, registers hold more sums of one byte.
template <const QuantLayout& kLayout, int kBytes>
constexpr int tokens_at_once() {
  return kLayout.scales_codes() && kBytes == 1 ? kByteTokens : kQuantTokens;
}

// Panels that are decoded a piece at a time, once for all tokens.
template <const QuantLayout& kLayout, int kVectors, int kBytes>
BALLAST_NOINLINE void multiply_many(const PanelRun& run, int64_t index, const void* const* tokens,
                                    int64_t num_tokens, const PanelProducts& out) {
  const int64_t num_groups = run.cols / kGroupCols;
  constexpr int kTokens = tokens_at_once<kLayout, kBytes>();
  PackedPanels<kLayout, kVectors> panels(run, index, divide_up(num_tokens, kTokens));
  DecodedPiece<kLayout, kVectors> piece;
  for (int64_t first = 0; first < num_groups; first += kPieceGroups) {
    const Groups groups{first, smaller(first + kPieceGroups, num_groups)};
    decode_piece(panels, groups, piece);
    multiply_rest<kLayout, kVectors, kTokens, kBytes>(piece, groups, run.blocks_per_scale, panels.ahead,
                                                      tokens, num_tokens,
                                                      {products_of(out, index), out.panel_stride});
  }
}

// The same with panels that have to be decoded first, however few the tokens are.
template <const QuantLayout& kLayout, int kVectors, int kBytes>
BALLAST_NOINLINE void multiply_decoded(const PanelRun& run, int64_t index, const void* const* tokens,
                                       int64_t num_tokens, const PanelProducts& out) {
  const int64_t num_groups = run.cols / kGroupCols;
  const PackedPanels<kLayout, kVectors> panels(run, index, 1);
  DecodedPiece<decoded_layout<kLayout>(), kVectors> piece;
  for (int64_t first = 0; first < num_groups; first += kPieceGroups) {
    const Groups groups{first, smaller(first + kPieceGroups, num_groups)};
    decode_first(panels, groups, piece);
    Ahead nothing{};
    multiply_rest<decoded_layout<kLayout>(), kVectors, tokens_at_once<decoded_layout<kLayout>(), kBytes>(),
                  kBytes>(piece, groups, run.blocks_per_scale, nothing, tokens, num_tokens,
                          {products_of(out, index), out.panel_stride});
  }
}

// More are worth decoding panels once for all of them.
constexpr int64_t kPackedTokens = 12;

// The products of one panel with few tokens, for which points are looked up into registers.
template <const QuantLayout& kLayout, int kBytes>
void multiply_in_registers(const PanelRun& run, int64_t index, const void* const* tokens, int64_t num_tokens,
                           const PanelProducts& out);
#ifndef BALLAST_MULTIPLIES_POINTS
template <int kBytes>
constexpr int64_t kMostInRegisters = 0;
constexpr bool looks_up_into_registers() { return false; }
#endif
template <const QuantLayout& kLayout, int kBytes>
BALLAST_INLINE bool keeps_points_in_registers(int64_t num_tokens) {
  return kLayout.has_grid() && num_tokens <= kMostInRegisters<kBytes> && looks_up_into_registers();
}

// Panels from `index` on, kVectors of rows at a time; returns how far that goes.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kBytes>
int64_t multiply_from(int64_t index, const PanelRun& run, const void* const* tokens, int64_t num_tokens,
                      const PanelProducts& out) {
  constexpr int kPanels = kVectors / kPanelVectors;
  for (; index + kPanels <= run.count; index += kPanels) {
    if constexpr (kLayout.has_grid() && kPanels == 1 && kMostInRegisters<kBytes> > 0) {
      if (keeps_points_in_registers<kLayout, kBytes>(num_tokens)) {
        multiply_in_registers<kLayout, kBytes>(run, index, tokens, num_tokens, out);
        continue;
      }
    }
    if constexpr (kLayout.is_decoded_first()) {
      multiply_decoded<kLayout, kVectors, kBytes>(run, index, tokens, num_tokens, out);
    } else if (num_tokens <= kPackedTokens) {
      multiply_few<kLayout, kVectors, kTokens, kBytes>(run, index, tokens, num_tokens, out);
    } else {
      multiply_many<kLayout, kVectors, kBytes>(run, index, tokens, num_tokens, out);
    }
  }
  return index;
}

template <const QuantLayout& kLayout, int kBytes>
void multiply_quantized(const PanelRun& run, const void* const* tokens, int64_t num_tokens,
                        const PanelProducts& out) {
  // Fewer than kQuantTokens wait for memory whatever the chip, and that hands out one panel after the other
  // faster.
  const bool are_paired =
      num_tokens > kPackedTokens || (num_tokens >= kQuantTokens && !run.prefetching.in_one_stream &&
                                     !keeps_points_in_registers<kLayout, kBytes>(num_tokens));
  for (int64_t panel = 0; panel < run.count && panel < (are_paired ? kQuantVectors / kPanelVectors : 1);
       ++panel)
    prefetch_begin(run, panel);
  if (are_paired) {
    constexpr int kTokens = tokens_at_once<kLayout, kBytes>();
    const int64_t rest =
        multiply_from<kLayout, kQuantVectors, kTokens, kBytes>(0, run, tokens, num_tokens, out);
    multiply_from<kLayout, kPanelVectors, kTokens, kBytes>(rest, run, tokens, num_tokens, out);
  } else {
    multiply_from<kLayout, kPanelVectors, kSingleTokens, kBytes>(0, run, tokens, num_tokens, out);
  }
}

}  // namespace
}  // namespace ballast
