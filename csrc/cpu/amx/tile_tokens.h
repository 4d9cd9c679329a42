// Activations of a few tokens as tiles read them: a piece of their columns copied side by side.
#pragma once

#include <cstdint>

#include "cpu/avx512/simd.h"

namespace ballast {
namespace {

// Tokens that are multiplied with a decoded piece of a panel before the next piece is.
constexpr int kMostTokens = 64;
// Groups of columns in a piece: with them, all that a tile is multiplied with stays in the nearest cache.
constexpr int kChunkGroups = 16;

BALLAST_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Rounded activations of one tile of tokens. Its sums take up 1 KiB for a sub-block, whatever kBytes.
template <int kBytes>
struct TileTokens {
  static constexpr int kSize = 16 / kBytes;

  // Tokens beyond `num_tokens` become zeros.
  void gather(const void* const* tokens, int64_t num_tokens, int64_t first_group, int64_t num_groups) {
    for (int64_t token = 0; token < kSize; ++token) {
      for (int64_t group = 0; group < num_groups; ++group) {
        if (token < num_tokens) {
          put(static_cast<const ActivationBlock<kBytes>*>(tokens[token])[first_group + group], group, token);
        } else {
          put(ActivationBlock<kBytes>{}, group, token);
        }
      }
    }
  }

  alignas(64) int8_t quants[kChunkGroups][kBytes][kSize][kGroupCols];
  float scale[kChunkGroups][kSize];

 private:
  void put(const ActivationBlock<kBytes>& block, int64_t group, int64_t token) {
    for (int plane = 0; plane < kBytes; ++plane) {
      __builtin_memcpy(quants[group][plane][token], block.quants + plane * kGroupCols, kGroupCols);
    }
    scale[group][token] = block.scale;
  }
};

}  // namespace
}  // namespace ballast
