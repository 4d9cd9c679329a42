// The codes and scales of a block of each quantised format, taken apart but not yet multiplied.
#pragma once

#include <cstdint>
#include <cstring>

#include "quant/blocks256.h"
#include "quant/blocks32.h"
#include "quant/bytes16.h"

namespace ballast {

struct alignas(16) RawBlock {
  uint8_t codes[256];  // without sign: the format's offset is still in them
  // Of sub-blocks; minima in the high nibbles for Q2_K; or a power of two, without sign; or E4M3's seven
  // bits.
  int8_t scales[16];
  uint8_t minima[16];
  F16 scale;
  F16 minimum;
};

// 16 bytes hold 32 weights: low halves the first 16, high halves the others.
inline void read_nibbles32(const uint8_t* nibbles, uint8_t* codes) {
  const Bytes16 both = load16(nibbles);
  store16(codes, both & same16(15));
  store16(codes + 16, shift_right(both, 4) & same16(15));
}

// Bit i belongs to weight i.
inline void add_fifth_bits32(const uint8_t (&bits)[4], uint8_t* codes) {
  constexpr Bytes16 kBit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  for (int half = 0; half < 2; ++half) {
    typedef uint64_t Eights __attribute__((vector_size(16)));
    constexpr uint64_t kEverywhere = 0x0101010101010101;
    const Bytes16 bytes =
        reinterpret_cast<Bytes16>(Eights{bits[2 * half] * kEverywhere, bits[2 * half + 1] * kEverywhere});
    const Bytes16 is_set = reinterpret_cast<Bytes16>((bytes & kBit) == kBit);
    store16(codes + 16 * half, load16(codes + 16 * half) | (is_set & same16(16)));
  }
}

// Bit s of byte i, 32 of them, belongs to weight 32 s + i.
template <int kTo>
void add_bits256(const uint8_t* bits, uint8_t* codes) {
  for (int s = 0; s < 8; ++s) {
    for (int i = 0; i < 32; i += 16) {
      uint8_t* to = codes + 32 * s + i;
      store16(to, load16(to) | shift_left(shift_right(load16(bits + i), s) & same16(1), kTo));
    }
  }
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
  for (int i = 0; i < 32; i += 16) {
    store16(raw.codes + i, load16(reinterpret_cast<const uint8_t*>(block.quants) + i) ^ same16(0x80));
  }
  raw.scale = block.scale;
}

inline void read_raw(const BlockIQ4_NL& block, RawBlock& raw) {
  read_nibbles32(block.nibbles, raw.codes);
  raw.scale = block.scale;
}

inline void read_raw(const BlockMXFP4& block, RawBlock& raw) {
  read_nibbles32(block.nibbles, raw.codes);
  raw.scales[0] = static_cast<int8_t>(block.power);
}

inline void read_raw(const BlockNVFP4& block, RawBlock& raw) {
  for (int sub = 0; sub < 4; ++sub) {
    for (int i = 0; i < 8; ++i) {
      raw.codes[16 * sub + i] = block.nibbles[8 * sub + i] & 15;
      raw.codes[16 * sub + 8 + i] = block.nibbles[8 * sub + i] >> 4;
    }
    raw.scales[sub] = static_cast<int8_t>(magnitude_of_e4m3(block.scales[sub]));
  }
}

// Two bits a weight, 32 bytes for 128 weights.
inline void read_pairs256(const uint8_t* pairs, uint8_t* codes) {
  for (int half = 0; half < 2; ++half) {
    for (int s = 0; s < 4; ++s) {
      for (int i = 0; i < 32; i += 16) {
        store16(codes + 128 * half + 32 * s + i,
                shift_right(load16(pairs + 32 * half + i), 2 * s) & same16(3));
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
  add_bits256<2>(block.third_bits, raw.codes);
  uint32_t words[3];
  std::memcpy(words, block.scales, sizeof(words));
  for (int four = 0; four < 4; ++four) {
    const uint32_t low = words[four % 2] >> (four / 2 * 4) & 0x0f0f0f0f;
    const uint32_t high = (words[2] >> (2 * four) & 0x03030303) << 4;
    // Less 32, each byte by itself: with its top bit set none borrows from the next.
    const uint32_t scales = ((low | high | 0x80808080) - 0x20202020) ^ 0x80808080;
    std::memcpy(raw.scales + 4 * four, &scales, sizeof(scales));
  }
  raw.scale = block.scale;
}

inline void read_raw(const BlockTQ1_0& block, RawBlock& raw) {
  for_each_trit(block, [&](int i, int code) { raw.codes[i] = static_cast<uint8_t>(code); });
  raw.scale = block.scale;
}

inline void read_raw(const BlockTQ2_0& block, RawBlock& raw) {
  read_pairs256(block.pairs, raw.codes);
  raw.scale = block.scale;
}

// 32 bytes hold 64 weights: low halves the first 32, high halves the others.
inline void read_nibbles256(const uint8_t* nibbles, uint8_t* codes) {
  for (int group = 0; group < 4; ++group) {
    for (int i = 0; i < 32; i += 16) {
      const Bytes16 both = load16(nibbles + 32 * group + i);
      store16(codes + 64 * group + i, both & same16(15));
      store16(codes + 64 * group + 32 + i, shift_right(both, 4) & same16(15));
    }
  }
}

// Four groups at a time, as unpack_scales has them one by one.
inline void read_scales_and_minima(const uint8_t (&scales)[12], RawBlock& raw) {
  uint32_t words[3];
  std::memcpy(words, scales, sizeof(words));
  constexpr uint32_t kSixBits = 0x3f3f3f3f;
  constexpr uint32_t kNibbles = 0x0f0f0f0f;
  constexpr uint32_t kTopPairs = 0xc0c0c0c0;
  const uint32_t group_scales[2] = {words[0] & kSixBits, (words[2] & kNibbles) | (words[0] & kTopPairs) >> 2};
  const uint32_t group_minima[2] = {words[1] & kSixBits,
                                    (words[2] >> 4 & kNibbles) | (words[1] & kTopPairs) >> 2};
  std::memcpy(raw.scales, group_scales, sizeof(group_scales));
  std::memcpy(raw.minima, group_minima, sizeof(group_minima));
}

inline void read_raw(const BlockQ4_K& block, RawBlock& raw) {
  read_nibbles256(block.nibbles, raw.codes);
  read_scales_and_minima(block.scales, raw);
  raw.scale = block.scale;
  raw.minimum = block.minimum;
}

inline void read_raw(const BlockQ5_K& block, RawBlock& raw) {
  read_nibbles256(block.nibbles, raw.codes);
  add_bits256<4>(block.fifth_bits, raw.codes);
  read_scales_and_minima(block.scales, raw);
  raw.scale = block.scale;
  raw.minimum = block.minimum;
}

inline void read_raw(const BlockQ6_K& block, RawBlock& raw) {
  read_pairs256(block.pairs, raw.codes);
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 64; i += 16) {
      const Bytes16 both = load16(block.nibbles + 64 * half + i);
      uint8_t* codes = raw.codes + 128 * half + i;
      store16(codes, shift_left(load16(codes), 4) | (both & same16(15)));
      store16(codes + 64, shift_left(load16(codes + 64), 4) | (shift_right(both, 4) & same16(15)));
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
