// Selects tiles where they are faster. All other products use the vector kernels.
#pragma once

#include "cpu/amx/bfloat_panels-inl.h"
#include "cpu/amx/byte_panels-inl.h"
#include "cpu/amx/super_tiles-inl.h"
#include "cpu/kernels.h"

namespace ballast {
namespace {

template <int kBytes>
BALLAST_INLINE const ActivationKernels& vectors() {
  return avx512_kernels()->by_bytes[kBytes - 1];
}

template <PanelKind kKind, int kBytes>
void with_vectors(const PanelRun& run, const void* const* tokens, int64_t num_tokens,
                  const PanelProducts& out) {
  vectors<kBytes>().multiply[static_cast<int>(kKind)](run, tokens, num_tokens, out);
}

// One-byte activations use tiles from a measured number of tokens (benchmarks/kernels/packed_linear.py). A
// tile that is less than three quarters full is slower than vectors.
template <const QuantLayout& kLayout, PanelKind kKind>
void with_byte_tiles(const PanelRun& run, const void* const* tokens, int64_t num_tokens,
                     const PanelProducts& out) {
  constexpr int64_t kFewest = 32;
  const int64_t rest = num_tokens % kTileTokens;
  const int64_t in_tiles = num_tokens < kFewest         ? 0
                           : rest < kTileTokens * 3 / 4 ? num_tokens - rest
                                                        : num_tokens;
  for (int64_t token = 0; token < in_tiles; token += kMostTokens)
    multiply_in_tiles<kLayout>(run, tokens + token, smaller(kMostTokens, in_tiles - token),
                               from_token(out, token));
  if (in_tiles < num_tokens)
    with_vectors<kKind, 1>(run, tokens + in_tiles, num_tokens - in_tiles, from_token(out, in_tiles));
}

// Formats that add up whole blocks: tiles are faster even if they are almost half empty.
template <int kBytes>
constexpr int64_t kFewestInTiles = kBytes == 1 ? 12 : 8;

template <int kBytes>
BALLAST_INLINE int64_t in_whole_tiles(int64_t num_tokens) {
  const int64_t rest = num_tokens % PairEnds<kBytes>::kTokens;
  return rest < kFewestInTiles<kBytes> ? num_tokens - rest : num_tokens;
}

template <const QuantLayout& kLayout, int kBytes>
void with_whole_tiles(const PanelRun& run, const void* const* tokens, int64_t num_tokens,
                      const PanelProducts& out) {
  const int64_t in_tiles = in_whole_tiles<kBytes>(num_tokens);
  for (int64_t token = 0; token < in_tiles; token += kMostSuperTokens) {
    const int64_t size = smaller(kMostSuperTokens, in_tiles - token);
    GatheredTokens<kBytes> gathered(tokens + token, size);
    multiply_in_whole_tiles<kLayout, kBytes>(run, gathered, size, from_token(out, token));
  }
  multiply_in_vectors<kLayout, kBytes>(run, tokens + in_tiles, num_tokens - in_tiles,
                                       from_token(out, in_tiles));
}

template <const QuantLayout& kLayout, int kBytes>
void with_arranged_tiles(const PanelRun& run, const ArrangedTokens& arranged, const void* const* tokens,
                         int64_t num_tokens, const PanelProducts& out) {
  const int64_t in_tiles = in_whole_tiles<kBytes>(num_tokens);
  ArrangedPairs<kBytes> pairs(arranged);
  multiply_in_whole_tiles<kLayout, kBytes>(run, pairs, in_tiles, out);
  multiply_in_vectors<kLayout, kBytes>(run, tokens + in_tiles, num_tokens - in_tiles,
                                       from_token(out, in_tiles));
}

template <const QuantLayout& kLayout, int kBytes>
constexpr TokenOrder pair_order() {
  return {kFewestInTiles<kBytes>,    PairEnds<kBytes>::kTokens, kSuperGroups * kGroupCols,
          sizeof(TokenPair<kBytes>), arrange_pairs<kBytes>,     with_arranged_tiles<kLayout, kBytes>};
}

template <int kBytes>
constexpr ActivationKernels vector_kernels() {
#define BALLAST_WITH_VECTORS(name, ...) with_vectors<PanelKind::k##name, kBytes>,
  return {{BALLAST_FORMATS(BALLAST_WITH_VECTORS, BALLAST_WITH_VECTORS)},
          {},
          [](const float* x, int64_t num_blocks, int64_t blocks_per_scale, void* out) {
            vectors<kBytes>().quantize(x, num_blocks, blocks_per_scale, out);
          },
          sizeof(ActivationBlock<kBytes>)};
#undef BALLAST_WITH_VECTORS
}

// For panels that gather their own tokens for tiles.
constexpr int64_t kMostPanels = 64;
constexpr TokenBlock kInTiles{kChunkGroups * kGroupCols, kMostSuperTokens, kMostPanels};

constexpr void use_tiles(ActivationKernels& kernels, PanelKind kind, MultiplyPanels multiply,
                         const TokenOrder& order = {}) {
  const int index = static_cast<int>(kind);
  kernels.multiply[index] = multiply;
  kernels.token_block[index] = kInTiles;
  kernels.token_order[index] = order;
}

// Vectors are faster for signed bytes with two-byte activations, and for sub-blocks of 16 columns, which fill
// only a quarter of a tile.
template <const QuantLayout& kLayout, PanelKind kKind, int kBytes>
constexpr void use_tiles_where_faster(ActivationKernels& kernels) {
  if constexpr (kLayout.sums_whole_blocks()) {
    use_tiles(kernels, kKind, with_whole_tiles<kLayout, kBytes>, pair_order<kLayout, kBytes>());
  } else if constexpr (kLayout.is_signed_bytes() && kBytes == 1) {
    use_tiles(kernels, kKind, with_byte_tiles<kLayout, kKind>);
  }
}

template <int kBytes>
constexpr ActivationKernels tile_kernels() {
  ActivationKernels kernels = vector_kernels<kBytes>();
  use_tiles(kernels, PanelKind::kBF16, multiply_bfloats);  // native format of the CPU
#define BALLAST_NONE(...)
#define BALLAST_USE_TILES(name, ...) \
  use_tiles_where_faster<kPanel##name, PanelKind::k##name, kBytes>(kernels);
  BALLAST_FORMATS(BALLAST_NONE, BALLAST_USE_TILES)
#undef BALLAST_USE_TILES
#undef BALLAST_NONE
  return kernels;
}

void silu_times(const float* gate, const float* up, int64_t n, float* out) {
  avx512_kernels()->silu_mul(gate, up, n, out);
}
void clamped_swiglu(const ClampedSwiglu& unit, const float* gate, const float* up, int64_t n, float* out) {
  avx512_kernels()->clamped_swiglu(unit, gate, up, n, out);
}
void attend(const AttentionStretch& stretch, const AttentionState& state) {
  avx512_kernels()->attention.attend(stretch, state);
}
void merge(int64_t num_rows, int64_t value_width, const AttentionState& next, const AttentionState& state) {
  avx512_kernels()->attention.merge(num_rows, value_width, next, state);
}
void index(const IndexStretch& stretch, float* scores) { avx512_kernels()->attention.index(stretch, scores); }
void narrow(const float* from, int64_t n, void* to) { avx512_kernels()->attention.narrow(from, n, to); }
void widen(const void* from, int64_t n, float* to) { avx512_kernels()->attention.widen(from, n, to); }
void delta_rule(const DeltaTile& tile) { avx512_kernels()->delta_rule(tile); }

const SamplingKernels& sampling() { return avx512_kernels()->sampling(); }

void sigmoid_mul(const float* gate, const float* up, int64_t n, float* out) {
  avx512_kernels()->sigmoid_mul(gate, up, n, out);
}
void softplus_decays(const float* x, const float* shift, float rate, int64_t n, float* out) {
  avx512_kernels()->softplus_decays(x, shift, rate, n, out);
}
void bounded_decays(const float* x, const float* shift, float rate, float bound, int64_t n, float* out) {
  avx512_kernels()->bounded_decays(x, shift, rate, bound, n, out);
}

constexpr Kernels kTileKernels{"amx",          {tile_kernels<1>(), tile_kernels<2>()},
                               silu_times,     clamped_swiglu,
                               sigmoid_mul,    softplus_decays,
                               bounded_decays, {attend, merge, index, narrow, widen},
                               delta_rule,     sampling};

}  // namespace
}  // namespace ballast
