// Tiles in plain C++ with the interface of cpu/amx/chip_tiles.h, so that the algorithms can be tested on CPUs
// without AMX and with sanitizers. Accesses outside a configured shape end the test.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/avx512/simd.h"
#include "emulated_amx.h"

#define CHECK_TILE(rule) ((rule) ? static_cast<void>(0) : break_tile_rule(#rule, __LINE__))

namespace ballast {
namespace {

struct TileConfig {
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

struct Tile {
  alignas(64) uint8_t bytes[16][64];
};

thread_local TileConfig tile_config;
thread_local bool tiles_configured = false;
thread_local Tile tiles[8];

BALLAST_INLINE void configure_tiles(const TileConfig& config) {
  tile_config = config;
  tiles_configured = true;
  std::memset(tiles, 0, sizeof(tiles));
}
BALLAST_INLINE void release_tiles() { tiles_configured = false; }

inline int rows_of(int tile) {
  CHECK_TILE(tiles_configured && tile_config.rows[tile] >= 1 && tile_config.rows[tile] <= 16);
  return tile_config.rows[tile];
}
inline int row_bytes_of(int tile) {
  CHECK_TILE(tile_config.row_bytes[tile] >= 4 && tile_config.row_bytes[tile] <= 64);
  return tile_config.row_bytes[tile];
}

template <int kTile>
void zero_tile() {
  rows_of(kTile);
  std::memset(&tiles[kTile], 0, sizeof(Tile));
}
template <int kTile>
void load_tile(const void* from, int64_t row_stride) {
  zero_tile<kTile>();
  for (int row = 0; row < rows_of(kTile); ++row) {
    std::memcpy(tiles[kTile].bytes[row], static_cast<const uint8_t*>(from) + row * row_stride,
                row_bytes_of(kTile));
  }
}
template <int kTile>
void store_tile(void* to, int64_t row_stride) {
  for (int row = 0; row < rows_of(kTile); ++row) {
    std::memcpy(static_cast<uint8_t*>(to) + row * row_stride, tiles[kTile].bytes[row], row_bytes_of(kTile));
  }
}

template <class T>
T element(const Tile& tile, int row, int index) {
  T value;
  std::memcpy(&value, tile.bytes[row] + index * int{sizeof(T)}, sizeof(T));
  return value;
}
template <class T>
void set_element(Tile& tile, int row, int index, T value) {
  std::memcpy(tile.bytes[row] + index * int{sizeof(T)}, &value, sizeof(T));
}

// The shapes that the CPU requires for a product.
template <int kSums, int kA, int kB>
void check_shapes() {
  CHECK_TILE(rows_of(kSums) == rows_of(kA) && row_bytes_of(kSums) == row_bytes_of(kB) &&
             row_bytes_of(kA) == 4 * rows_of(kB));
}

template <int kSums, int kA, int kB, class B>
void add_whole_products() {
  check_shapes<kSums, kA, kB>();
  for (int m = 0; m < rows_of(kSums); ++m) {
    for (int n = 0; n < row_bytes_of(kSums) / 4; ++n) {
      int32_t sum = element<int32_t>(tiles[kSums], m, n);
      for (int k = 0; k < row_bytes_of(kA); ++k) {
        sum += element<int8_t>(tiles[kA], m, k) * element<B>(tiles[kB], k / 4, 4 * n + k % 4);
      }
      set_element(tiles[kSums], m, n, sum);
    }
  }
}

template <int kSums, int kA, int kB>
void add_byte_products() {
  add_whole_products<kSums, kA, kB, int8_t>();
}
template <int kSums, int kA, int kB>
void add_unsigned_products() {
  add_whole_products<kSums, kA, kB, uint8_t>();
}

inline float bfloat(const Tile& tile, int row, int index) {
  const uint32_t bits = static_cast<uint32_t>(element<uint16_t>(tile, row, index)) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

template <int kSums, int kA, int kB>
void add_bfloat_products() {
  check_shapes<kSums, kA, kB>();
  for (int m = 0; m < rows_of(kSums); ++m) {
    for (int n = 0; n < row_bytes_of(kSums) / 4; ++n) {
      float sums[2] = {};
      for (int k = 0; k < row_bytes_of(kA) / 2; ++k) {
        sums[k % 2] =
            __builtin_fmaf(bfloat(tiles[kA], m, k), bfloat(tiles[kB], k / 2, 2 * n + k % 2), sums[k % 2]);
      }
      set_element(tiles[kSums], m, n, element<float>(tiles[kSums], m, n) + (sums[0] + sums[1]));
    }
  }
}

}  // namespace
}  // namespace ballast
