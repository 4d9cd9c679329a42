// AMX tiles under the names that cpu/amx uses: 8 registers of up to 16 rows of 64 bytes. Tests run the same
// algorithms on tests/cpp/support/emulated_tiles.h.
#pragma once

#include <cstdint>

#include "cpu/avx512/simd.h"

namespace ballast {
namespace {

// The operand of ldtilecfg.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

BALLAST_INLINE void configure_tiles(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }
BALLAST_INLINE void release_tiles() { asm volatile("tilerelease"); }

template <int kTile>
BALLAST_INLINE void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
BALLAST_INLINE void load_tile(const void* from, int64_t row_stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row_stride), "i"(kTile) : "memory");
}
template <int kTile>
BALLAST_INLINE void store_tile(void* to, int64_t row_stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row_stride), "i"(kTile) : "memory");
}
// sums[m][n] += four signed bytes of row m of a times four of column n of b, for all groups of four in a row.
template <int kSums, int kA, int kB>
BALLAST_INLINE void add_byte_products() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kA), "i"(kB));
}
// The same with unsigned bytes in b.
template <int kSums, int kA, int kB>
BALLAST_INLINE void add_unsigned_products() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kA), "i"(kB));
}
// The same with pairs of bfloat16 and float sums.
template <int kSums, int kA, int kB>
BALLAST_INLINE void add_bfloat_products() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kA), "i"(kB));
}

}  // namespace
}  // namespace ballast
