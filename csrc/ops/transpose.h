// Rows to columns, four by four.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/vector.h"

namespace ballast {

inline void transpose_tile(const float* from, int64_t from_stride, int64_t num_rows, int64_t num_cols,
                           float* to, int64_t to_stride) {
  int64_t row = 0;
  for (; row + 4 <= num_rows; row += 4) {
    const float* source = from + row * from_stride;
    int64_t col = 0;
    for (; col + 4 <= num_cols; col += 4) {
      const Float4 a = load4(source + col);
      const Float4 b = load4(source + from_stride + col);
      const Float4 c = load4(source + 2 * from_stride + col);
      const Float4 d = load4(source + 3 * from_stride + col);
      const Float4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
      const Float4 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const Float4 cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
      const Float4 cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
      float* target = to + col * to_stride + row;
      store4(target, __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
      store4(target + to_stride, __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
      store4(target + 2 * to_stride, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
      store4(target + 3 * to_stride, __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
    }
    for (; col < num_cols; ++col) {
      for (int64_t i = 0; i < 4; ++i) to[col * to_stride + row + i] = source[i * from_stride + col];
    }
  }
  for (; row < num_rows; ++row) {
    for (int64_t col = 0; col < num_cols; ++col) to[col * to_stride + row] = from[row * from_stride + col];
  }
}

// to[col * to_stride + row] = from[row * from_stride + col]
inline void transpose(const float* from, int64_t from_stride, int64_t num_rows, int64_t num_cols, float* to,
                      int64_t to_stride) {
  constexpr int64_t kTile = 64;  // whose lines on both sides stay in the nearest cache, even far apart
  for (int64_t row = 0; row < num_rows; row += kTile) {
    for (int64_t col = 0; col < num_cols; col += kTile) {
      transpose_tile(from + row * from_stride + col, from_stride, std::min(kTile, num_rows - row),
                     std::min(kTile, num_cols - col), to + col * to_stride + row, to_stride);
    }
  }
}

}  // namespace ballast
