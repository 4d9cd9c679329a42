// F32, F16 and BF16: one weight a block. Also the half-precision scale inside most quantised blocks.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/halves.h"

namespace ballast {

// 2 to the power of a byte - 128 (E8M0, halved); the two smallest are no normal floats.
inline float power_of_two(uint8_t power) {
  return float_from_bits(power < 2 ? 0x00200000u << power : static_cast<uint32_t>(power - 1) << 23);
}

// The seven bits of an E4M3 float that has no sign. NaN (0x7f, not 0xff) becomes zero, as in the gguf
// package.
inline uint8_t magnitude_of_e4m3(uint8_t code) { return code == 0x7f ? 0 : code & 0x7f; }

// A half of what they stand for. Shifted into the place of a half's bits, the exponent is 7 too small.
inline float half_of_e4m3(uint8_t magnitude) {
  const uint16_t half = static_cast<uint16_t>(magnitude << 7);
  return F16{{static_cast<uint8_t>(half & 255), static_cast<uint8_t>(half >> 8)}}.to_float() * 0x1p7f;
}

inline void dequantize_F32(const uint8_t* data, int64_t num_weights, float* out) {
  std::memcpy(out, data, static_cast<size_t>(num_weights) * sizeof(float));
}

inline void dequantize_F16(const uint8_t* data, int64_t num_weights, float* __restrict out) {
  for (int64_t i = 0; i < num_weights; ++i) out[i] = F16{{data[2 * i], data[2 * i + 1]}}.to_float();
}

inline void dequantize_BF16(const uint8_t* data, int64_t num_weights, float* __restrict out) {
  for (int64_t i = 0; i < num_weights; ++i) {
    const uint32_t high_half = static_cast<uint32_t>(data[2 * i] | (data[2 * i + 1] << 8));
    out[i] = float_from_bits(high_half << 16);
  }
}

}  // namespace ballast
