// Multiplies panels of signed bytes with one-byte activations in tiles of 16 tokens. A tile adds up one
// group. Scales are applied as in the vector kernels, so the bits of a token do not depend on the kernel.
#pragma once

#include "cpu/amx/tile_tokens.h"
#include "cpu/panels/decode_codes-inl.h"
#include "cpu/panels/decode_scales-inl.h"
#include "cpu/panels/prefetch-inl.h"
#include "cpu/shared/integers-inl.h"

namespace ballast {
namespace {

// Some groups of a panel, as signed bytes and floats.
struct DecodedChunk {
  alignas(64) uint8_t bytes[kChunkGroups][kGroupQuads][kQuadBytes];
  alignas(64) float scale[kChunkGroups][kPanelRows];
};

template <const QuantLayout& kLayout, int kQuad = 0>
BALLAST_INLINE void decode_signed(const uint8_t* group, uint8_t (*out)[kQuadBytes]) {
  if constexpr (kQuad < kGroupQuads) {
    const Bytes codes = decode_quad<kLayout, kQuad>(group);
    _mm512_store_si512(out[kQuad], _mm512_sub_epi8(codes, bytes_of(kLayout.offset)));
    decode_signed<kLayout, kQuad + 1>(group, out);
  }
}

template <const QuantLayout& kLayout>
BALLAST_INLINE void decode_chunk(const uint8_t* panel, const uint8_t* groups, int64_t first_group,
                                 int64_t num_groups, DecodedChunk& out) {
  const CommonScales common = common_scales<kLayout>(panel, 0, first_group);
  for (int64_t group = 0; group < num_groups; ++group) {
    decode_signed<kLayout>(groups + (first_group + group) * kLayout.group_bytes(), out.bytes[group]);
    GroupScales<kLayout> scales;
    decode_scales<kLayout>(common, group, scales);
    store_floats(out.scale[group], scales.scale[0]);
  }
}

// Groups in flight: vectors scale one group while tiles multiply later ones. The sums take 4 KiB, so that no
// load waits for a store to the same offset in another page.
constexpr int kInFlight = 4;
constexpr int kAhead = 3;

struct Sums {
  alignas(64) int32_t ring[kInFlight][kTileTokens][kPanelRows];
};

// Tiles: sums in 0…3, activations in 4 and 5, weights in 6 and 7.
template <int kSlot>
BALLAST_INLINE void multiply_at(const uint8_t* weights, const int8_t* tokens, Sums& sums) {
  load_tile<6 + kSlot % 2>(weights, kQuadBytes);
  zero_tile<kSlot>();
  load_tile<4 + kSlot % 2>(tokens, kGroupCols);
  add_byte_products<kSlot, 4 + kSlot % 2, 6 + kSlot % 2>();
  store_tile<kSlot>(sums.ring[kSlot], sizeof(sums.ring[0][0]));
}

BALLAST_INLINE void multiply_group(const DecodedChunk& chunk, const TileTokens& tile, int64_t group,
                                   Sums& sums) {
  const uint8_t* weights = chunk.bytes[group][0];
  const int8_t* tokens = tile.quants[group][0];
  switch (group % kInFlight) {
    case 0:
      return multiply_at<0>(weights, tokens, sums);
    case 1:
      return multiply_at<1>(weights, tokens, sums);
    case 2:
      return multiply_at<2>(weights, tokens, sums);
    default:
      return multiply_at<3>(weights, tokens, sums);
  }
}

// out [token][16] += a chunk times one tile of tokens. Each groups_per_scale groups share an activation
// scale.
void multiply_chunk(const DecodedChunk& chunk, int64_t num_groups, int64_t groups_per_scale,
                    const TileTokens& tile, float* out) {
  Sums sums;
  for (int64_t group = 0; group < kAhead && group < num_groups; ++group)
    multiply_group(chunk, tile, group, sums);
  for (int64_t begin = 0; begin < num_groups; begin += groups_per_scale) {
    Floats totals[kTileTokens];
#pragma GCC unroll 16
    for (Floats& total : totals) total = zero_floats();
    for (int64_t group = begin; group < begin + groups_per_scale; ++group) {
      if (group + kAhead < num_groups) multiply_group(chunk, tile, group + kAhead, sums);
      const Floats scale = load_floats(chunk.scale[group]);
#pragma GCC unroll 16
      for (int token = 0; token < kTileTokens; ++token) {
        const Floats number = to_floats(_mm512_load_si512(sums.ring[group % kInFlight][token]));
        totals[token] = multiply_add(number, scale, totals[token]);
      }
    }
#pragma GCC unroll 16
    for (int token = 0; token < kTileTokens; ++token) {
      float* to = out + token * kPanelRows;
      const Floats scale = broadcast_float(tile.scale[begin][token]);
      store_floats(to, multiply_add(totals[token], scale, load_floats(to)));
    }
  }
}

TileConfig byte_tiles() {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = tile < 6 ? kTileTokens : kGroupQuads;
    config.row_bytes[tile] = tile == 4 || tile == 5 ? kGroupCols : kQuadBytes;
  }
  return config;
}

// Prefetches one slice of the source of a panel's chunk.
template <const QuantLayout& kLayout>
BALLAST_INLINE void prefetch_chunk(const uint8_t* groups, int64_t num_groups, int64_t slice,
                                   int64_t num_slices) {
  const int64_t num_lines = num_groups * kLayout.group_bytes() / 64;
  for (int64_t line = slice * num_lines / num_slices; line < (slice + 1) * num_lines / num_slices; ++line)
    _mm_prefetch(reinterpret_cast<const char*>(groups + line * 64), _MM_HINT_T1);
}

// Up to kMostTokens tokens.
template <const QuantLayout& kLayout>
void multiply_in_tiles(const PanelRun& run, const void* const* tokens, int64_t num_tokens,
                       const PanelProducts& out) {
  const int64_t num_groups = run.cols / kGroupCols;
  const int64_t num_tiles = divide_up(num_tokens, kTileTokens);
  TileTokens gathered[kMostTokens / kTileTokens];
  configure_tiles(byte_tiles());
  for (int64_t first = 0; first < num_groups; first += kChunkGroups) {
    const int64_t size = smaller(kChunkGroups, num_groups - first);
    for (int64_t tile = 0; tile < num_tiles; ++tile)
      gathered[tile].gather(tokens + tile * kTileTokens, num_tokens - tile * kTileTokens, first, size);
    for (int64_t index = 0; index < run.count; ++index) {
      const uint8_t* groups = panel_of(run, index) + kLayout.scale_bytes(run.cols);
      const uint8_t* next = groups + run.panel_bytes + first * kLayout.group_bytes();
      DecodedChunk chunk;
      decode_chunk<kLayout>(panel_of(run, index), groups, first, size, chunk);
      for (int64_t tile = 0; tile < num_tiles; ++tile) {
        prefetch_chunk<kLayout>(next, size, tile, num_tiles);
        float totals[kTileTokens * kPanelRows] = {};
        float* products = products_of(out, index) + tile * kTileTokens * kPanelRows;
        const int64_t num_floats = smaller(kTileTokens, num_tokens - tile * kTileTokens) * kPanelRows;
        if (first > 0) __builtin_memcpy(totals, products, static_cast<unsigned long>(num_floats) * 4);
        multiply_chunk(chunk, size, run.blocks_per_scale, gathered[tile], totals);
        __builtin_memcpy(products, totals, static_cast<unsigned long>(num_floats) * 4);
      }
    }
  }
  release_tiles();
}

}  // namespace
}  // namespace ballast
