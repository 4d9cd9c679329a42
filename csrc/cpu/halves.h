// IEEE halves: what their bits stand for, and rounding to them. Not for objects of instruction sets.
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

}  // namespace ballast
