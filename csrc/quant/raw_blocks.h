// The codes and scales of a block of each quantised format, taken apart but not yet multiplied.
#pragma once

#include <cstdint>
#include <cstring>

#include "quant/blocks256.h"
#include "quant/blocks32.h"

namespace ballast {

struct RawBlock {
  uint8_t codes[256];  // without sign: the format's offset is still in them
  int8_t scales[16];   // of sub-blocks; minima in the high nibbles for Q2_K
  uint8_t minima[16];
  F16 scale;
  F16 minimum;
};

inline void read_nibbles32(const uint8_t* nibbles, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) codes[i] = nibbles[i] & 15;
  for (int i = 0; i < 16; ++i) codes[16 + i] = nibbles[i] >> 4;
}

inline void add_fifth_bits32(const uint8_t (&bits)[4], uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(codes[i] | fifth_bit(bits, i));
}

inline void read_raw(const BlockQ4_0& block, RawBlock& raw) {
  read_nibbles32(block.nibbles, raw.codes);
  raw.scale = block.scale;
}

inline void read_raw(const BlockQ4_1& block, RawBlock& raw) {
  read_nibbles32(block.nibbles, raw.codes);
  raw.scale = block.scale;
  raw.minimum = block.minimum;
}

inline void read_raw(const BlockQ5_0& block, RawBlock& raw) {
  read_nibbles32(block.nibbles, raw.codes);
  add_fifth_bits32(block.fifth_bits, raw.codes);
  raw.scale = block.scale;
}

inline void read_raw(const BlockQ5_1& block, RawBlock& raw) {
  read_nibbles32(block.nibbles, raw.codes);
  add_fifth_bits32(block.fifth_bits, raw.codes);
  raw.scale = block.scale;
  raw.minimum = block.minimum;
}

inline void read_raw(const BlockQ8_0& block, RawBlock& raw) {
  for (int i = 0; i < 32; ++i) raw.codes[i] = static_cast<uint8_t>(block.quants[i] ^ 0x80);
  raw.scale = block.scale;
}

inline void read_raw(const BlockIQ4_NL& block, RawBlock& raw) {
  read_nibbles32(block.nibbles, raw.codes);
  raw.scale = block.scale;
}

// Two bits a weight, 32 bytes for 128 weights.
inline void read_pairs256(const uint8_t* pairs, uint8_t* codes) {
  for (int half = 0; half < 2; ++half) {
    for (int s = 0; s < 4; ++s) {
      for (int i = 0; i < 32; ++i) {
        codes[128 * half + 32 * s + i] = static_cast<uint8_t>((pairs[32 * half + i] >> (2 * s)) & 3);
      }
    }
  }
}

inline void read_raw(const BlockQ2_K& block, RawBlock& raw) {
  read_pairs256(block.pairs, raw.codes);
  std::memcpy(raw.scales, block.scales, sizeof(raw.scales));
  raw.scale = block.scale;
  raw.minimum = block.minimum;
}

inline void read_raw(const BlockQ3_K& block, RawBlock& raw) {
  read_pairs256(block.pairs, raw.codes);
  for (int s = 0; s < 8; ++s) {
    for (int i = 0; i < 32; ++i) {
      raw.codes[32 * s + i] =
          static_cast<uint8_t>(raw.codes[32 * s + i] | ((block.third_bits[i] >> s) & 1) << 2);
    }
  }
  for (int group = 0; group < 16; ++group) {
    const int low = (block.scales[group % 8] >> (group / 8 * 4)) & 15;
    const int high = (block.scales[8 + group % 4] >> (group / 4 * 2)) & 3;
    raw.scales[group] = static_cast<int8_t>((low | high << 4) - 32);
  }
  raw.scale = block.scale;
}

// 32 bytes hold 64 weights: low halves the first 32, high halves the others.
inline void read_nibbles256(const uint8_t* nibbles, uint8_t* codes) {
  for (int group = 0; group < 4; ++group) {
    for (int i = 0; i < 32; ++i) codes[64 * group + i] = nibbles[32 * group + i] & 15;
    for (int i = 0; i < 32; ++i) codes[64 * group + 32 + i] = nibbles[32 * group + i] >> 4;
  }
}

inline void read_scales_and_minima(const uint8_t (&scales)[12], RawBlock& raw) {
  for (int group = 0; group < 8; ++group) {
    const GroupScale unpacked = unpack_scales(scales, group);
    raw.scales[group] = static_cast<int8_t>(unpacked.scale);
    raw.minima[group] = static_cast<uint8_t>(unpacked.minimum);
  }
}

inline void read_raw(const BlockQ4_K& block, RawBlock& raw) {
  read_nibbles256(block.nibbles, raw.codes);
  read_scales_and_minima(block.scales, raw);
  raw.scale = block.scale;
  raw.minimum = block.minimum;
}

inline void read_raw(const BlockQ5_K& block, RawBlock& raw) {
  read_nibbles256(block.nibbles, raw.codes);
  for (int s = 0; s < 8; ++s) {
    for (int i = 0; i < 32; ++i) {
      raw.codes[32 * s + i] =
          static_cast<uint8_t>(raw.codes[32 * s + i] | ((block.fifth_bits[i] >> s) & 1) << 4);
    }
  }
  read_scales_and_minima(block.scales, raw);
  raw.scale = block.scale;
  raw.minimum = block.minimum;
}

inline void read_raw(const BlockQ6_K& block, RawBlock& raw) {
  read_pairs256(block.pairs, raw.codes);
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 64; ++i) {
      const uint8_t nibbles = block.nibbles[64 * half + i];
      uint8_t* codes = raw.codes + 128 * half + i;
      codes[0] = static_cast<uint8_t>(codes[0] << 4 | (nibbles & 15));
      codes[64] = static_cast<uint8_t>(codes[64] << 4 | nibbles >> 4);
    }
  }
  std::memcpy(raw.scales, block.scales, sizeof(raw.scales));
  raw.scale = block.scale;
}

inline void read_raw(const BlockIQ4_XS& block, RawBlock& raw) {
  for (int group = 0; group < 8; ++group) {
    read_nibbles32(block.nibbles + 16 * group, raw.codes + 32 * group);
    const int low = (block.scales_low[group / 2] >> (group % 2 * 4)) & 15;
    const int high = (block.scales_high[group / 4] >> (group % 4 * 2)) & 3;
    raw.scales[group] = static_cast<int8_t>((low | high << 4) - 32);
  }
  raw.scale = block.scale;
}

}  // namespace ballast
