// Multiplies a run of quantized panels with tokens, and chooses how: from packed or decoded panels.
#pragma once

#include "cpu/kernels.h"
#include "cpu/panels/accumulate_tokens-inl.h"
#include "cpu/panels/decoded_panels-inl.h"
#include "cpu/panels/packed_panels-inl.h"
#include "cpu/shared/integers-inl.h"

namespace ballast {
namespace {

// Decodes panels while it multiplies them, with kTokens tokens at a time.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kBytes>
BALLAST_NOINLINE void multiply_few(const PanelRun& run, int64_t index, const void* const* tokens,
                                   int64_t num_tokens, const PanelProducts& out) {
  const int64_t num_passes = divide_up(num_tokens, kTokens);
  PackedPanels<kLayout, kVectors> panels(run, index, num_passes);
  for (int64_t pass = 0; pass < num_passes; ++pass) {
    const int64_t begin = num_tokens * pass / num_passes;
    const int64_t end = num_tokens * (pass + 1) / num_passes;
    multiply_rest<kLayout, kVectors, kTokens, kBytes>(
        panels, {0, run.cols / kGroupCols}, run.blocks_per_scale, panels.next_prefetch, tokens + begin,
        end - begin, {products_of(out, index) + begin * kPanelRows, out.panel_stride});
    panels.own_prefetch = no_prefetch();  // the first pass has prefetched the panel
  }
}

// With one-byte activations and integer sums of super-blocks, registers hold the sums of more tokens.
template <const QuantLayout& kLayout, int kBytes>
constexpr int tokens_at_once() {
  return kLayout.scales_codes() && kBytes == 1 ? kByteTokens : kQuantTokens;
}

// Decodes some groups of the panels at a time, once for all tokens.
template <const QuantLayout& kLayout, int kVectors, int kBytes>
BALLAST_NOINLINE void multiply_many(const PanelRun& run, int64_t index, const void* const* tokens,
                                    int64_t num_tokens, const PanelProducts& out) {
  const int64_t num_groups = run.cols / kGroupCols;
  constexpr int kTokens = tokens_at_once<kLayout, kBytes>();
  PackedPanels<kLayout, kVectors> panels(run, index, divide_up(num_tokens, kTokens));
  DecodedPanels<kLayout, kVectors> decoded;
  for (int64_t first = 0; first < num_groups; first += kDecodedGroups) {
    const Groups groups{first, smaller(first + kDecodedGroups, num_groups)};
    decode_panels(panels, groups, decoded);
    multiply_rest<kLayout, kVectors, kTokens, kBytes>(decoded, groups, run.blocks_per_scale,
                                                      panels.next_prefetch, tokens, num_tokens,
                                                      {products_of(out, index), out.panel_stride});
  }
}

// The same for formats that are always decoded first, even with few tokens.
template <const QuantLayout& kLayout, int kVectors, int kBytes>
BALLAST_NOINLINE void multiply_decoded(const PanelRun& run, int64_t index, const void* const* tokens,
                                       int64_t num_tokens, const PanelProducts& out) {
  const int64_t num_groups = run.cols / kGroupCols;
  const PackedPanels<kLayout, kVectors> panels(run, index, 1);
  DecodedPanels<decoded_layout<kLayout>(), kVectors> decoded;
  for (int64_t first = 0; first < num_groups; first += kDecodedGroups) {
    const Groups groups{first, smaller(first + kDecodedGroups, num_groups)};
    decode_first(panels, groups, decoded);
    NextPrefetch nothing{};
    multiply_rest<decoded_layout<kLayout>(), kVectors, tokens_at_once<decoded_layout<kLayout>(), kBytes>(),
                  kBytes>(decoded, groups, run.blocks_per_scale, nothing, tokens, num_tokens,
                          {products_of(out, index), out.panel_stride});
  }
}

// With more tokens, panels are decoded once for all of them.
constexpr int64_t kPackedTokens = 12;

// Multiplies one panel with few tokens; points are looked up into registers.
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

// Multiplies kVectors vectors of rows at a time, from panel `index`. Returns the first panel that is left.
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
  // With fewer than kQuantTokens tokens, memory is the limit. It delivers one panel after the other faster
  // than two together.
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
