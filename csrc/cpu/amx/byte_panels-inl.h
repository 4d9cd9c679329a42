// Products of quantised panels with a tile of tokens at a time. Bytes are multiplied in tiles, one sub-block
// after the other; scales are applied as the vector kernels do it, so that a token's bits are the same
// however it is computed.
#pragma once

#include "cpu/amx/tile_tokens.h"
#include "cpu/shared/panel-inl.h"

namespace ballast {
namespace {

// A piece of a panel, as signed bytes and floats.
template <const QuantLayout& kLayout>
struct DecodedChunk {
  static constexpr int kSubs = kLayout.subs_per_group();
  static_assert(!kLayout.has_minimum, "none of these formats has minima");

  void decode(const PanelPart& panel, int64_t first_group, int64_t num_groups);

  alignas(64) uint8_t bytes[kChunkGroups][kGroupQuads][kQuadBytes];
  alignas(64) float scale[kChunkGroups * kSubs][kPanelRows];
};

template <const QuantLayout& kLayout>
BALLAST_INLINE Bytes signed_codes(Bytes codes) {
  if constexpr (kLayout.offset_log2 == 0) return codes;
  return _mm512_sub_epi8(codes, bytes_of(1 << kLayout.offset_log2));
}

template <const QuantLayout& kLayout, int kQuad = 0>
BALLAST_INLINE void decode_signed(const uint8_t* group, uint8_t (*out)[kQuadBytes]) {
  if constexpr (kQuad < kGroupQuads) {
    _mm512_store_si512(out[kQuad], signed_codes<kLayout>(decode_quad<kLayout, kQuad>(group)));
    decode_signed<kLayout, kQuad + 1>(group, out);
  }
}

template <const QuantLayout& kLayout>
void DecodedChunk<kLayout>::decode(const PanelPart& panel, int64_t first_group, int64_t num_groups) {
  for (int64_t group = 0; group < num_groups; ++group) {
    decode_signed<kLayout>(panel.groups + (first_group + group) * kLayout.group_bytes(), bytes[group]);
    GroupScales<kLayout> scales;
    decode_scales<kLayout>(panel, first_group + group, scales);
    for (int sub = 0; sub < kSubs; ++sub) store_floats(scale[group * kSubs + sub], scales.scale[sub]);
  }
}

// Sub-blocks on their way through the tiles: the vectors scale one while tiles multiply those behind it.
// Their sums together are 4 KiB, so that no load waits for a store to the same place in another page.
constexpr int kUnderWay = 4;
constexpr int kAhead = 3;

template <int kBytes>
struct Sums {
  alignas(64) int32_t ring[kUnderWay][kBytes][TileTokens<kBytes>::kSize][kPanelRows];
};

// Tiles: sums in 0…3, activations in 4 and 5, weights in 6 and 7.
template <const QuantLayout& kLayout, int kBytes, int kPlace, int kPlane = 0>
BALLAST_INLINE void multiply_planes(const int8_t* tokens, Sums<kBytes>& sums) {
  if constexpr (kPlane < kBytes) {
    constexpr int kSum = kBytes == 1 ? kPlace : kPlace % 2 * 2 + kPlane;
    constexpr int kTokens = 4 + (kBytes == 1 ? kPlace % 2 : kPlane);
    zero_tile<kSum>();
    load_tile<kTokens>(tokens + kPlane * TileTokens<kBytes>::kSize * kGroupCols, kGroupCols);
    add_byte_products<kSum, kTokens, 6 + kPlace % 2>();
    store_tile<kSum>(sums.ring[kPlace][kPlane], sizeof(sums.ring[0][0][0]));
    multiply_planes<kLayout, kBytes, kPlace, kPlane + 1>(tokens, sums);
  }
}

template <const QuantLayout& kLayout, int kBytes, int kPlace>
BALLAST_INLINE void multiply_at(const uint8_t* weights, const int8_t* tokens, Sums<kBytes>& sums) {
  load_tile<6 + kPlace % 2>(weights, kQuadBytes);
  multiply_planes<kLayout, kBytes, kPlace>(tokens, sums);
}

template <const QuantLayout& kLayout, int kBytes>
BALLAST_INLINE void multiply_sub(const DecodedChunk<kLayout>& chunk, const TileTokens<kBytes>& tile, int sub,
                                 Sums<kBytes>& sums) {
  constexpr int kSubs = kLayout.subs_per_group();
  const uint8_t* weights = chunk.bytes[0][0] + sub * kLayout.sub_block * kPanelRows;
  const int8_t* tokens = tile.quants[sub / kSubs][0][0] + sub % kSubs * kLayout.sub_block;
  switch (sub % kUnderWay) {
    case 0:
      return multiply_at<kLayout, kBytes, 0>(weights, tokens, sums);
    case 1:
      return multiply_at<kLayout, kBytes, 1>(weights, tokens, sums);
    case 2:
      return multiply_at<kLayout, kBytes, 2>(weights, tokens, sums);
    default:
      return multiply_at<kLayout, kBytes, 3>(weights, tokens, sums);
  }
}

// A token's whole numbers as floats, rounded once.
template <int kBytes>
BALLAST_INLINE Floats numbers(const int32_t (&planes)[kBytes][TileTokens<kBytes>::kSize][kPanelRows],
                              int token) {
  const Floats first = to_floats(_mm512_load_si512(planes[0][token]));
  if constexpr (kBytes == 1) return first;
  return multiply_add(broadcast_float(kDigitBase), first,
                      to_floats(_mm512_load_si512(planes[kBytes - 1][token])));
}

// out [token][16] += a chunk times one tile of tokens; subs_per_scale of its sub-blocks share an activation
// scale.
template <const QuantLayout& kLayout, int kBytes>
void multiply_chunk(const DecodedChunk<kLayout>& chunk, int num_subs, int subs_per_scale,
                    const TileTokens<kBytes>& tile, float* out) {
  constexpr int kTokens = TileTokens<kBytes>::kSize;
  constexpr int kSubs = kLayout.subs_per_group();
  Sums<kBytes> sums;
  for (int sub = 0; sub < kAhead && sub < num_subs; ++sub) {
    multiply_sub<kLayout, kBytes>(chunk, tile, sub, sums);
  }
  for (int begin = 0; begin < num_subs; begin += subs_per_scale) {
    Floats totals[kTokens];
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) totals[token] = zero_floats();
    for (int sub = begin; sub < begin + subs_per_scale; ++sub) {
      if (sub + kAhead < num_subs) multiply_sub<kLayout, kBytes>(chunk, tile, sub + kAhead, sums);
      const Floats scale = load_floats(chunk.scale[sub]);
#pragma GCC unroll 16
      for (int token = 0; token < kTokens; ++token) {
        const Floats number = numbers<kBytes>(sums.ring[sub % kUnderWay], token);
        totals[token] = multiply_add(number, scale, totals[token]);
      }
    }
    const float* scales = tile.scale[begin / kSubs];
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) {
      float* to = out + token * kPanelRows;
      store_floats(to, multiply_add(totals[token], broadcast_float(scales[token]), load_floats(to)));
    }
  }
}

template <const QuantLayout& kLayout, int kBytes>
TileConfig byte_tiles() {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = tile < 6 ? TileTokens<kBytes>::kSize : kLayout.sub_block / 4;
    config.row_bytes[tile] = tile == 4 || tile == 5 ? kLayout.sub_block : kQuadBytes;
  }
  return config;
}

// Asks for what a panel's chunk will be decoded from, a share of it at a time.
template <const QuantLayout& kLayout>
BALLAST_INLINE void prefetch_chunk(const uint8_t* groups, int64_t num_groups, int64_t share,
                                   int64_t num_shares) {
  const int64_t num_lines = num_groups * kLayout.group_bytes() / 64;
  for (int64_t line = share * num_lines / num_shares; line < (share + 1) * num_lines / num_shares; ++line) {
    _mm_prefetch(reinterpret_cast<const char*>(groups + line * 64), _MM_HINT_T1);
  }
}

// Up to kMostTokens tokens.
template <const QuantLayout& kLayout, int kBytes>
void multiply_in_tiles(const PanelRun& run, const void* const* tokens, int64_t num_tokens,
                       const PanelProducts& out) {
  constexpr int kSize = TileTokens<kBytes>::kSize;
  const int64_t num_groups = run.cols / kGroupCols;
  const int64_t num_tiles = (num_tokens + kSize - 1) / kSize;
  TileTokens<kBytes> gathered[kMostTokens / kSize];
  const int subs_per_scale = static_cast<int>(run.blocks_per_scale) * kLayout.subs_per_group();
  configure_tiles(byte_tiles<kLayout, kBytes>());
  for (int64_t first = 0; first < num_groups; first += kChunkGroups) {
    const int64_t size = smaller(kChunkGroups, num_groups - first);
    for (int64_t tile = 0; tile < num_tiles; ++tile)
      gathered[tile].gather(tokens + tile * kSize, num_tokens - tile * kSize, first, size);
    for (int64_t index = 0; index < run.count; ++index) {
      const uint8_t* groups = run[index] + kLayout.scale_bytes(run.cols);
      const uint8_t* next = groups + run.panel_bytes + first * kLayout.group_bytes();
      DecodedChunk<kLayout> chunk;
      chunk.decode({run[index], groups, 0}, first, size);
      for (int64_t tile = 0; tile < num_tiles; ++tile) {
        prefetch_chunk<kLayout>(next, size, tile, num_tiles);
        float totals[kSize * kPanelRows] = {};
        float* products = out[index] + tile * kSize * kPanelRows;
        const int64_t num_floats = smaller(kSize, num_tokens - tile * kSize) * kPanelRows;
        if (first > 0) __builtin_memcpy(totals, products, static_cast<unsigned long>(num_floats) * 4);
        multiply_chunk<kLayout, kBytes>(chunk, static_cast<int>(size) * kLayout.subs_per_group(),
                                        subs_per_scale, gathered[tile], totals);
        __builtin_memcpy(products, totals, static_cast<unsigned long>(num_floats) * 4);
      }
    }
  }
  release_tiles();
}

}  // namespace
}  // namespace ballast
