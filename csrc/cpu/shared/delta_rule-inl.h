// The gated delta rule. A lane is a column of the state, and sums run over rows in one fixed order.
#pragma once

#include "cpu/delta_rule.h"

namespace ballast {
namespace {

// Sums that are added up side by side; one alone would wait for each addition.
constexpr int kDeltaSums = 4;
constexpr int kDeltaVectors = 2;

BALLAST_INLINE Floats sum_of_four(const Floats (&sums)[kDeltaSums][kDeltaVectors], int vector) {
  return add(add(sums[0][vector], sums[1][vector]), add(sums[2][vector], sums[3][vector]));
}

// One token of kDeltaVectors vectors of columns from `column`.
BALLAST_INLINE void delta_token(const DeltaTile& in, int64_t token, int64_t column) {
  const float* key = in.keys + token * in.input_stride;
  const float* query = in.queries + token * in.input_stride;
  const float* value = in.values + token * in.input_stride + column;
  float* state = in.state + column;
  const Floats decay = broadcast_float(in.decays[token * in.gate_stride]);
  const Floats beta = broadcast_float(in.betas[token * in.gate_stride]);
  Floats sums[kDeltaSums][kDeltaVectors];
#pragma GCC unroll 4
  for (int s = 0; s < kDeltaSums; ++s) {
#pragma GCC unroll 2
    for (int v = 0; v < kDeltaVectors; ++v) sums[s][v] = zero_floats();
  }
  for (int64_t row = 0; row < in.key_width; row += kDeltaSums) {
#pragma GCC unroll 4
    for (int s = 0; s < kDeltaSums; ++s) {
      const Floats factor = broadcast_float(key[row + s]);
#pragma GCC unroll 2
      for (int v = 0; v < kDeltaVectors; ++v) {
        const Floats old = load_floats(state + (row + s) * kDeltaColumns + v * kVectorRows);
        sums[s][v] = multiply_add(old, factor, sums[s][v]);
      }
    }
  }
  Floats change[kDeltaVectors];
#pragma GCC unroll 2
  for (int v = 0; v < kDeltaVectors; ++v) {
    const Floats wanted = load_floats(value + v * kVectorRows);
    change[v] = multiply(beta, multiply_subtract_from(decay, sum_of_four(sums, v), wanted));
  }
#pragma GCC unroll 4
  for (int s = 0; s < kDeltaSums; ++s) {
#pragma GCC unroll 2
    for (int v = 0; v < kDeltaVectors; ++v) sums[s][v] = zero_floats();
  }
  for (int64_t row = 0; row < in.key_width; row += kDeltaSums) {
#pragma GCC unroll 4
    for (int s = 0; s < kDeltaSums; ++s) {
      const Floats factor = broadcast_float(key[row + s]);
      const Floats asked = broadcast_float(query[row + s]);
#pragma GCC unroll 2
      for (int v = 0; v < kDeltaVectors; ++v) {
        float* entry = state + (row + s) * kDeltaColumns + v * kVectorRows;
        const Floats next = multiply_add(factor, change[v], multiply(decay, load_floats(entry)));
        store_floats(entry, next);
        sums[s][v] = multiply_add(next, asked, sums[s][v]);
      }
    }
  }
  float* out = in.out + token * in.out_stride + column;
#pragma GCC unroll 2
  for (int v = 0; v < kDeltaVectors; ++v) store_floats(out + v * kVectorRows, sum_of_four(sums, v));
}

void delta_rule(const DeltaTile& tile) {
  for (int64_t column = 0; column < kDeltaColumns; column += kDeltaVectors * kVectorRows) {
    for (int64_t token = 0; token < tile.num_tokens; ++token) delta_token(tile, token, column);
  }
}

}  // namespace
}  // namespace ballast
