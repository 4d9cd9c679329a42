// Four floats in one register on every 64-bit x86 and Arm, as cpu/simd.md specifies. GCC and Clang define +
// and * for them lane by lane.
#pragma once

#include <cstdint>

#include "cpu/halves.h"

#ifndef BALLAST_INLINE
#define BALLAST_INLINE static inline __attribute__((always_inline))
#endif

namespace ballast {
namespace {

typedef float Floats __attribute__((vector_size(16)));
typedef int32_t FloatBits __attribute__((vector_size(16)));

constexpr int kVectorRows = 4;
constexpr int kSingleItems = 8;
constexpr int kPairItems = 4;

BALLAST_INLINE Floats load_floats(const float* from) {
  Floats value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}
BALLAST_INLINE void store_floats(float* to, Floats a) { __builtin_memcpy(to, &a, sizeof(a)); }
BALLAST_INLINE Floats broadcast_float(float value) { return Floats{value, value, value, value}; }
BALLAST_INLINE Floats halves_to_floats(const uint8_t* from) {
  Floats value;
  for (int i = 0; i < kVectorRows; ++i) value[i] = F16{{from[2 * i], from[2 * i + 1]}}.to_float();
  return value;
}
BALLAST_INLINE void store_halves(uint8_t* to, Floats a) {
  for (int i = 0; i < kVectorRows; ++i) {
    const F16 half = F16::rounded(a[i]);
    to[2 * i] = half.bytes[0];
    to[2 * i + 1] = half.bytes[1];
  }
}
BALLAST_INLINE Floats zero_floats() { return Floats{}; }
BALLAST_INLINE Floats add(Floats a, Floats b) { return a + b; }
BALLAST_INLINE Floats subtract(Floats a, Floats b) { return a - b; }
BALLAST_INLINE Floats multiply(Floats a, Floats b) { return a * b; }
BALLAST_INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }
BALLAST_INLINE Floats multiply_subtract_from(Floats a, Floats b, Floats c) { return c - a * b; }
BALLAST_INLINE Floats select(FloatBits where, Floats a, Floats b) {
  return reinterpret_cast<Floats>((where & reinterpret_cast<FloatBits>(a)) |
                                  (~where & reinterpret_cast<FloatBits>(b)));
}
BALLAST_INLINE Floats larger(Floats a, Floats b) { return select(a > b, a, b); }
BALLAST_INLINE Floats zero_where_less(Floats a, Floats bound, Floats value) {
  return select(a < bound, Floats{}, value);
}
BALLAST_INLINE Floats where_less(Floats a, Floats bound, Floats value, Floats otherwise) {
  return select(a < bound, value, otherwise);
}
// 2 to the power of the signed integer in the low bits of a's fraction.
BALLAST_INLINE Floats exponent_of_low_bits(Floats a) {
  typedef uint32_t Unsigned __attribute__((vector_size(16)));
  return reinterpret_cast<Floats>((reinterpret_cast<Unsigned>(a) << 23) + 0x3f800000);
}

typedef int64_t Longs __attribute__((vector_size(16)));
constexpr int kDoubleLanes = 2;
// One bit per lane of the result of a comparison.
BALLAST_INLINE unsigned lane_bits(Longs where) {
  return static_cast<unsigned>((where[0] & 1) | (where[1] & 2));
}

}  // namespace
}  // namespace ballast
