// The two inner loops of the reference operations. Every output is the result of one fixed sequence of float
// operations on its own inputs: how many outputs are computed together changes the speed, never a bit of the
// result. (The build forbids contraction to fused multiply-adds, which a compiler applies in one loop and not
// in another.)
#pragma once

#include <cstdint>
#include <cstring>

namespace ballast {

// Four floats of one register on every 64-bit x86 and Arm; GCC and Clang write +, * for it lane by lane.
typedef float Float4 __attribute__((vector_size(16)));

inline Float4 load4(const float* from) {
  Float4 value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

inline void store4(float* to, Float4 value) { std::memcpy(to, &value, sizeof(value)); }

// out[k] = shared · others[k] over n elements. Element i goes to partial sum i % 8, and the eight partial
// sums are added in one fixed tree. Multiplication commutes, so it does not matter either which of the two
// sides is shared.
template <int kCount>
inline void dot(const float* shared, const float* const* others, int64_t n, float* out) {
  Float4 low[kCount] = {};
  Float4 high[kCount] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const Float4 shared_low = load4(shared + i);
    const Float4 shared_high = load4(shared + i + 4);
    for (int k = 0; k < kCount; ++k) {
      low[k] += shared_low * load4(others[k] + i);
      high[k] += shared_high * load4(others[k] + i + 4);
    }
  }
  for (int k = 0; k < kCount; ++k) {
    float sums[8];
    store4(sums, low[k]);
    store4(sums + 4, high[k]);
    for (int64_t rest = i; rest < n; ++rest) sums[rest - i] += shared[rest] * others[k][rest];
    out[k] = ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
  }
}

inline float dot(const float* a, const float* b, int64_t n) {
  float out;
  dot<1>(a, &b, n, &out);
  return out;
}

// out[i] += scales[0] * rows[0][i], then += scales[1] * rows[1][i], and so on: for each element in the order
// of rows.
template <int kCount>
inline void add_scaled(const float* scales, const float* const* rows, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    Float4 sum = load4(out + i);
    for (int k = 0; k < kCount; ++k) sum += scales[k] * load4(rows[k] + i);
    store4(out + i, sum);
  }
  for (; i < n; ++i) {
    for (int k = 0; k < kCount; ++k) out[i] += scales[k] * rows[k][i];
  }
}

inline void add_scaled(const float* scales, const float* const* rows, int64_t num_rows, int64_t n,
                       float* out) {
  int64_t row = 0;
  for (; row + 4 <= num_rows; row += 4) add_scaled<4>(scales + row, rows + row, n, out);
  for (; row < num_rows; ++row) add_scaled<1>(scales + row, rows + row, n, out);
}

}  // namespace ballast
