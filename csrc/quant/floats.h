// F32, F16 and BF16: one weight a block. Also the half-precision scale inside most quantised blocks.
#pragma once

#include <cstdint>
#include <cstring>

namespace ballast {

inline float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// A little-endian IEEE half. Stored as bytes, so that blocks may be at any address of a mapped file.
struct F16 {
  uint8_t bytes[2];

  float to_float() const {
    const uint32_t half = static_cast<uint32_t>(bytes[0] | (bytes[1] << 8));
    const uint32_t magnitude = half & 0x7fffu;
    // Shifted, the exponent is 112 too small; multiplying by 2^112 corrects that exactly, for subnormals too.
    const float finite = float_from_bits(magnitude << 13) * 0x1p112f;
    uint32_t bits = bits_of_float(finite);
    if (magnitude >= 0x7c00u) bits = (magnitude << 13) | 0x7f800000u;  // infinity and NaN
    return float_from_bits(bits | ((half & 0x8000u) << 16));
  }

  // The nearest half of a finite number below 65520 in magnitude, ties to even; NaN becomes NaN.
  static F16 rounded(float value) {
    const uint32_t bits = bits_of_float(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u) {
      half = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
    } else if (magnitude < 0x38800000u) {
      // Subnormal: adding 1/2 leaves multiples of 2^-24, rounded by the addition.
      half = bits_of_float(float_from_bits(magnitude) + 0.5f) - 0x3f000000u;
    } else {
      half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    }
    half |= (bits >> 16) & 0x8000u;
    return {{static_cast<uint8_t>(half & 255u), static_cast<uint8_t>(half >> 8)}};
  }
};
static_assert(sizeof(F16) == 2 && alignof(F16) == 1);

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
