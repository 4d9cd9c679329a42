// A few weight rows times the rows of all tokens: the middle loop of every matrix product here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/index_range.h"
#include "ops/vector.h"
#include "quant/matrix.h"

namespace ballast {

// Weight rows that are dequantised at a time; with any usual width they fit the second-level cache.
constexpr int64_t kTileRows = 8;

// A token's products with the rows of a panel. The common case, all 16 of them, needs no call of memcpy.
inline void copy_products(const float* from, int64_t size, float* to) {
  if (size == kPanelRows) {
    std::memcpy(to, from, kPanelRows * sizeof(float));
  } else {
    std::copy_n(from, size, to);
  }
}

inline void scale_products(float scale, int64_t size, float* products) {
  if (scale == 1.0f) return;
  for (int64_t i = 0; i < size; ++i) products[i] *= scale;
}

// to += weight * such products.
inline void add_scaled_products(const float* from, float weight, int64_t size, float* to) {
  if (size == kPanelRows) {
    for (int i = 0; i < kPanelRows; i += 4) store4(to + i, load4(to + i) + weight * load4(from + i));
  } else {
    add_scaled<1>(&weight, &from, size, to);
  }
}

inline void dequantize_rows(const Matrix& matrix, IndexRange rows, float* out) {
  for (int64_t row = rows.begin; row < rows.end; ++row)
    matrix.dequantize_row(row, out + (row - rows.begin) * matrix.cols());
}

// store(token, row, tokens[token] · row) for each of num_tokens pointers and each of num_rows rows [cols].
template <class Store>
void multiply_tile(const float* rows, int64_t num_rows, int64_t cols, const float* const* tokens,
                   int64_t num_tokens, const Store& store) {
  float products[4];
  int64_t token = 0;
  for (; token + 4 <= num_tokens; token += 4) {
    for (int64_t row = 0; row < num_rows; ++row) {
      dot<4>(rows + row * cols, tokens + token, cols, products);
      for (int k = 0; k < 4; ++k) store(token + k, row, products[k]);
    }
  }
  for (; token < num_tokens; ++token) {
    int64_t row = 0;
    for (; row + 4 <= num_rows; row += 4) {
      const float* four_rows[4];
      for (int k = 0; k < 4; ++k) four_rows[k] = rows + (row + k) * cols;
      dot<4>(tokens[token], four_rows, cols, products);
      for (int k = 0; k < 4; ++k) store(token, row + k, products[k]);
    }
    for (; row < num_rows; ++row) store(token, row, dot(rows + row * cols, tokens[token], cols));
  }
}

}  // namespace ballast
