// The formats of 32 weights a block with one scale: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL and MXFP4.
// Nibbles: the low halves of the 16 bytes are weights 0…15, the high halves weights 16…31.
// NVFP4 has 64 weights a block and a scale for each 16, whose nibbles are 8 bytes: low halves 0…7, high 8…15.
#pragma once

#include <cstdint>

#include "cpu/code_tables.h"
#include "quant/floats.h"

namespace ballast {

struct BlockQ8_0 {
  F16 scale;
  int8_t quants[32];
};

struct BlockQ4_0 {
  F16 scale;
  uint8_t nibbles[16];
};

struct BlockQ4_1 {
  F16 scale;
  F16 minimum;
  uint8_t nibbles[16];
};

struct BlockQ5_0 {
  F16 scale;
  uint8_t fifth_bits[4];  // bit i of the little-endian word belongs to weight i
  uint8_t nibbles[16];
};

struct BlockQ5_1 {
  F16 scale;
  F16 minimum;
  uint8_t fifth_bits[4];
  uint8_t nibbles[16];
};

struct BlockIQ4_NL {
  F16 scale;
  uint8_t nibbles[16];
};

struct BlockMXFP4 {
  uint8_t power;
  uint8_t nibbles[16];
};

struct BlockNVFP4 {
  uint8_t scales[4];
  uint8_t nibbles[32];
};

// What a nibble of IQ4 stands for.
inline constexpr TableSteps kIQ4Steps = steps_of(CodeTable::kIQ4);
inline constexpr TableSteps kE2M1Steps = steps_of(CodeTable::kE2M1);

inline void dequantize_block(const BlockQ8_0& block, float* __restrict out) {
  const float scale = block.scale.to_float();
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(block.quants[i]) * scale;
}

inline void dequantize_block(const BlockQ4_0& block, float* __restrict out) {
  const float scale = block.scale.to_float();
  for (int i = 0; i < 16; ++i) out[i] = scale * static_cast<float>((block.nibbles[i] & 15) - 8);
  for (int i = 0; i < 16; ++i) out[16 + i] = scale * static_cast<float>((block.nibbles[i] >> 4) - 8);
}

inline void dequantize_block(const BlockQ4_1& block, float* __restrict out) {
  const float scale = block.scale.to_float();
  const float minimum = block.minimum.to_float();
  for (int i = 0; i < 16; ++i) out[i] = scale * static_cast<float>(block.nibbles[i] & 15) + minimum;
  for (int i = 0; i < 16; ++i) out[16 + i] = scale * static_cast<float>(block.nibbles[i] >> 4) + minimum;
}

inline int fifth_bit(const uint8_t (&bits)[4], int weight) {
  return ((bits[weight / 8] >> (weight % 8)) & 1) << 4;
}

inline void dequantize_block(const BlockQ5_0& block, float* __restrict out) {
  const float scale = block.scale.to_float();
  for (int i = 0; i < 16; ++i) {
    const int low = (block.nibbles[i] & 15) | fifth_bit(block.fifth_bits, i);
    const int high = (block.nibbles[i] >> 4) | fifth_bit(block.fifth_bits, 16 + i);
    out[i] = scale * static_cast<float>(low - 16);
    out[16 + i] = scale * static_cast<float>(high - 16);
  }
}

inline void dequantize_block(const BlockQ5_1& block, float* __restrict out) {
  const float scale = block.scale.to_float();
  const float minimum = block.minimum.to_float();
  for (int i = 0; i < 16; ++i) {
    const int low = (block.nibbles[i] & 15) | fifth_bit(block.fifth_bits, i);
    const int high = (block.nibbles[i] >> 4) | fifth_bit(block.fifth_bits, 16 + i);
    out[i] = scale * static_cast<float>(low) + minimum;
    out[16 + i] = scale * static_cast<float>(high) + minimum;
  }
}

inline void dequantize_block(const BlockIQ4_NL& block, float* __restrict out) {
  const float scale = block.scale.to_float();
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * kIQ4Steps.by_code[block.nibbles[i] & 15];
    out[16 + i] = scale * kIQ4Steps.by_code[block.nibbles[i] >> 4];
  }
}

inline void dequantize_block(const BlockMXFP4& block, float* __restrict out) {
  const float scale = power_of_two(block.power);
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * kE2M1Steps.by_code[block.nibbles[i] & 15];
    out[16 + i] = scale * kE2M1Steps.by_code[block.nibbles[i] >> 4];
  }
}

inline void dequantize_block(const BlockNVFP4& block, float* __restrict out) {
  for (int sub = 0; sub < 4; ++sub, out += 16) {
    const float scale = half_of_e4m3(magnitude_of_e4m3(block.scales[sub]));
    for (int i = 0; i < 8; ++i) {
      out[i] = scale * kE2M1Steps.by_code[block.nibbles[8 * sub + i] & 15];
      out[8 + i] = scale * kE2M1Steps.by_code[block.nibbles[8 * sub + i] >> 4];
    }
  }
}

}  // namespace ballast
