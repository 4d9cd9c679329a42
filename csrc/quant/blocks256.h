// The formats of 256 weights a block, whose groups of 16 or 32 weights have small integer scales of their
// own: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K and IQ4_XS; and those with one
// scale alone, TQ1_0 and TQ2_0. Products are formed as (block scale * group scale) * quant,
// the order in which the gguf package forms them, so results are equal to the bit.
#pragma once

#include <cstdint>

#include "quant/blocks32.h"
#include "quant/floats.h"

namespace ballast {

struct BlockQ2_K {
  uint8_t scales[16];  // of 16 weights each: low nibble scale, high nibble minimum
  uint8_t pairs[64];   // two bits a weight; 32 bytes hold 128 weights, weights 32 s + i in bits 2 s of byte i
  F16 scale;
  F16 minimum;
};

struct BlockQ3_K {
  uint8_t third_bits[32];  // bit s of byte i belongs to weight 32 s + i; clear means 4 less
  uint8_t pairs[64];       // as in Q2_K
  uint8_t scales[12];      // 16 scales of six bits, offset 32: eight bytes of low nibbles, then high pairs
  F16 scale;
};

struct BlockQ4_K {
  F16 scale;
  F16 minimum;
  uint8_t scales[12];    // eight scales and eight minima of six bits, see unpack_scales
  uint8_t nibbles[128];  // 32 bytes hold 64 weights: low halves the first 32, high halves the others
};

struct BlockQ5_K {
  F16 scale;
  F16 minimum;
  uint8_t scales[12];
  uint8_t fifth_bits[32];  // bit s of byte i belongs to weight 32 s + i
  uint8_t nibbles[128];
};

struct BlockQ6_K {
  uint8_t nibbles[128];  // 64 bytes hold 128 weights: low halves the first 64, high halves the others
  uint8_t pairs[64];     // bits 4 and 5, laid out as in Q2_K
  int8_t scales[16];
  F16 scale;
};

struct BlockIQ4_XS {
  F16 scale;
  uint8_t scales_high[2];  // bits 4 and 5 of the eight scales, two a scale
  uint8_t scales_low[4];   // bits 0…3, offset 32
  uint8_t nibbles[128];    // 16 bytes hold 32 weights, as in IQ4_NL
};

struct BlockTQ1_0 {
  uint8_t fives[48];  // digits to the base of 3: of 32 bytes five times 32 weights, of 16 five times 16
  uint8_t fours[4];   // of 4 bytes four times 4
  F16 scale;
};

struct BlockTQ2_0 {
  uint8_t pairs[64];  // as in Q2_K
  F16 scale;
};

inline void dequantize_block(const BlockQ2_K& block, float* __restrict out) {
  const float scale = block.scale.to_float();
  const float minimum = block.minimum.to_float();
  for (int group = 0; group < 16; ++group) {
    const uint8_t* pairs = block.pairs + group / 8 * 32 + group % 2 * 16;
    const int shift = group % 8 / 2 * 2;
    const float group_scale = scale * static_cast<float>(block.scales[group] & 15);
    const float group_minimum = minimum * static_cast<float>(block.scales[group] >> 4);
    for (int i = 0; i < 16; ++i) {
      out[16 * group + i] = group_scale * static_cast<float>((pairs[i] >> shift) & 3) - group_minimum;
    }
  }
}

inline void dequantize_block(const BlockQ3_K& block, float* __restrict out) {
  const float scale = block.scale.to_float();
  for (int group = 0; group < 16; ++group) {
    const uint8_t* pairs = block.pairs + group / 8 * 32 + group % 2 * 16;
    const uint8_t* third_bits = block.third_bits + group % 2 * 16;
    const int shift = group % 8 / 2 * 2;
    const int bit = group / 2;
    const int low = (block.scales[group % 8] >> (group / 8 * 4)) & 15;
    const int high = (block.scales[8 + group % 4] >> (group / 4 * 2)) & 3;
    const float group_scale = scale * static_cast<float>((low | high << 4) - 32);
    for (int i = 0; i < 16; ++i) {
      const int quant = ((pairs[i] >> shift) & 3) + (((third_bits[i] >> bit) & 1) << 2) - 4;
      out[16 * group + i] = group_scale * static_cast<float>(quant);
    }
  }
}

struct GroupScale {
  int scale;
  int minimum;
};

// Groups 0…3: the low six bits of bytes 0…3 (scales) and 4…7 (minima). Groups 4…7: the nibbles of bytes 8…11,
// and above them the two bits that the first eight bytes have left.
inline GroupScale unpack_scales(const uint8_t (&scales)[12], int group) {
  if (group < 4) return {scales[group] & 63, scales[group + 4] & 63};
  return {(scales[group + 4] & 15) | (scales[group - 4] >> 6) << 4,
          (scales[group + 4] >> 4) | (scales[group] >> 6) << 4};
}

// code_of(group, i): the code of a group's i-th weight.
template <class Block, class CodeOf>
void dequantize_groups(const Block& block, const CodeOf& code_of, float* __restrict out) {
  const float scale = block.scale.to_float();
  const float minimum = block.minimum.to_float();
  for (int group = 0; group < 8; ++group) {
    const GroupScale packed = unpack_scales(block.scales, group);
    const float group_scale = scale * static_cast<float>(packed.scale);
    const float group_minimum = minimum * static_cast<float>(packed.minimum);
    for (int i = 0; i < 32; ++i)
      out[32 * group + i] = group_scale * static_cast<float>(code_of(group, i)) - group_minimum;
  }
}

// Two groups share 32 bytes: the low nibbles are the first one's.
inline int group_nibble(const uint8_t* nibbles, int group, int i) {
  return (nibbles[group / 2 * 32 + i] >> group % 2 * 4) & 15;
}

inline void dequantize_block(const BlockQ4_K& block, float* __restrict out) {
  dequantize_groups(block, [&](int group, int i) { return group_nibble(block.nibbles, group, i); }, out);
}

inline void dequantize_block(const BlockQ5_K& block, float* __restrict out) {
  const auto code_of = [&](int group, int i) {
    return group_nibble(block.nibbles, group, i) | ((block.fifth_bits[i] >> group) & 1) << 4;
  };
  dequantize_groups(block, code_of, out);
}

inline void dequantize_block(const BlockQ6_K& block, float* __restrict out) {
  const float scale = block.scale.to_float();
  for (int group = 0; group < 16; ++group) {
    const uint8_t* nibbles = block.nibbles + group / 8 * 64 + group % 4 * 16;
    const uint8_t* pairs = block.pairs + group / 8 * 32 + group % 2 * 16;
    const int nibble_shift = group % 8 / 4 * 4;
    const int pair_shift = group % 8 / 2 * 2;
    const float group_scale = scale * static_cast<float>(block.scales[group]);
    for (int i = 0; i < 16; ++i) {
      const int quant = ((nibbles[i] >> nibble_shift) & 15) | ((pairs[i] >> pair_shift) & 3) << 4;
      out[16 * group + i] = group_scale * static_cast<float>(quant - 32);
    }
  }
}

inline void dequantize_block(const BlockIQ4_XS& block, float* __restrict out) {
  const float scale = block.scale.to_float();
  for (int group = 0; group < 8; ++group) {
    const uint8_t* nibbles = block.nibbles + 16 * group;
    const int low = (block.scales_low[group / 2] >> (group % 2 * 4)) & 15;
    const int high = (block.scales_high[group / 4] >> (group % 4 * 2)) & 3;
    const float group_scale = scale * static_cast<float>((low | high << 4) - 32);
    for (int i = 0; i < 16; ++i) {
      out[32 * group + i] = group_scale * kIQ4Steps.by_code[nibbles[i] & 15];
      out[32 * group + 16 + i] = group_scale * kIQ4Steps.by_code[nibbles[i] >> 4];
    }
  }
}

// One digit of a byte: see cpu/panel_layout.h.
inline int trit_at(uint8_t number, int digit) {
  constexpr int kPowers[] = {1, 3, 9, 27, 81};
  return static_cast<uint8_t>(number * kPowers[digit]) * 3 >> 8;
}

// weight_at(i, code) for all weights.
template <class WeightAt>
void for_each_trit(const BlockTQ1_0& block, const WeightAt& weight_at) {
  for (int digit = 0; digit < 5; ++digit) {
    for (int i = 0; i < 32; ++i) weight_at(32 * digit + i, trit_at(block.fives[i], digit));
    for (int i = 0; i < 16; ++i) weight_at(160 + 16 * digit + i, trit_at(block.fives[32 + i], digit));
  }
  for (int digit = 0; digit < 4; ++digit) {
    for (int i = 0; i < 4; ++i) weight_at(240 + 4 * digit + i, trit_at(block.fours[i], digit));
  }
}

inline void dequantize_block(const BlockTQ1_0& block, float* __restrict out) {
  const float scale = block.scale.to_float();
  for_each_trit(block, [&](int i, int code) { out[i] = scale * static_cast<float>(code - 1); });
}

inline void dequantize_block(const BlockTQ2_0& block, float* __restrict out) {
  const float scale = block.scale.to_float();
  for (int i = 0; i < 256; ++i) {
    const int code = block.pairs[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
    out[i] = scale * static_cast<float>(code - 1);
  }
}

}  // namespace ballast
