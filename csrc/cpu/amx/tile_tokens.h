// Activations of a few tokens in the layout of tiles: a range of columns of each, copied next to each other.
#pragma once

#include <cstdint>

#include "cpu/avx512/simd.h"
#include "cpu/kernels.h"

namespace ballast {
namespace {

constexpr int kTileTokens = 16;
// Tokens that a decoded chunk of a panel is multiplied with before the next chunk.
constexpr int kMostTokens = 64;
// Groups in a chunk. The chunk and its tokens fit in the first-level cache.
constexpr int kChunkGroups = 16;

// The products, starting at `token`.
BALLAST_INLINE PanelProducts from_token(const PanelProducts& products, int64_t token) {
  return {products.first + token * kPanelRows, products.panel_stride};
}

// One-byte activations of one tile of tokens.
struct TileTokens {
  // Tokens beyond `num_tokens` are zero.
  void gather(const void* const* tokens, int64_t num_tokens, int64_t first_group, int64_t num_groups) {
    static constexpr ActivationBlock<1> kNothing{};
    for (int64_t token = 0; token < kTileTokens; ++token) {
      for (int64_t group = 0; group < num_groups; ++group) {
        const ActivationBlock<1>& block =
            token < num_tokens ? static_cast<const ActivationBlock<1>*>(tokens[token])[first_group + group]
                               : kNothing;
        __builtin_memcpy(quants[group][token], block.quants, kGroupCols);
        scale[group][token] = block.scale;
      }
    }
  }

  alignas(64) int8_t quants[kChunkGroups][kTileTokens][kGroupCols];
  float scale[kChunkGroups][kTileTokens];
};

}  // namespace
}  // namespace ballast
