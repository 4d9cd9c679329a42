// Multiplies a run of float panels with tokens.
#pragma once

#include "cpu/kernels.h"
#include "cpu/panels/prefetch-inl.h"

namespace ballast {
namespace {

struct F32AsFloats {
  static constexpr int kBytes = 4;
  BALLAST_INLINE Floats load(const uint8_t* from) {
    return load_floats(reinterpret_cast<const float*>(from));
  }
};
struct F16AsFloats {
  static constexpr int kBytes = 2;
  BALLAST_INLINE Floats load(const uint8_t* from) { return halves_to_floats(from); }
};
struct BF16AsFloats {
  static constexpr int kBytes = 2;
  BALLAST_INLINE Floats load(const uint8_t* from) { return bfloats_to_floats(from); }
};

// Column c is added to partial sum c % 4: a single sum would wait for its own latency.
template <class Format, int kTokens>
BALLAST_INLINE void multiply_float_tokens(const PanelRun& run, const uint8_t* panel,
                                          const void* const* tokens, float* out) {
  constexpr int kColumnBytes = kPanelRows * Format::kBytes;
  constexpr int kSums = 4;
  const int64_t cols = run.cols;
  const float* rows[kTokens];
  Floats sums[kTokens][kSums];
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
    rows[token] = static_cast<const float*>(tokens[token]);
#pragma GCC unroll 4
    for (int k = 0; k < kSums; ++k) sums[token][k] = zero_floats();
  }
  int64_t col = 0;
  for (; col + kSums <= cols; col += kSums) {
#pragma GCC unroll 4
    for (int k = 0; k < kSums; ++k) {
      const Floats weights = Format::load(panel + (col + k) * kColumnBytes);
      prefetch(panel + (col + k) * kColumnBytes + run.prefetching.bytes_ahead, 1, run.prefetching.to);
#pragma GCC unroll 16
      for (int token = 0; token < kTokens; ++token) {
        sums[token][k] = multiply_add(weights, broadcast_float(rows[token][col + k]), sums[token][k]);
      }
    }
  }
  for (; col < cols; ++col) {
    const Floats weights = Format::load(panel + col * kColumnBytes);
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) {
      sums[token][0] = multiply_add(weights, broadcast_float(rows[token][col]), sums[token][0]);
    }
  }
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
    store_floats(out + token * kPanelRows,
                 add(add(sums[token][0], sums[token][1]), add(sums[token][2], sums[token][3])));
  }
}

template <class Format, int kTokens>
void multiply_float_rest(const PanelRun& run, const uint8_t* panel, const void* const* tokens,
                         int64_t num_tokens, float* out) {
  for (; num_tokens >= kTokens; num_tokens -= kTokens, tokens += kTokens, out += kTokens * kPanelRows) {
    multiply_float_tokens<Format, kTokens>(run, panel, tokens, out);
  }
  if constexpr (kTokens > 1) {
    if (num_tokens > 0) multiply_float_rest<Format, kTokens / 2>(run, panel, tokens, num_tokens, out);
  }
}

template <class Format>
void multiply_floats(const PanelRun& run, const void* const* tokens, int64_t num_tokens,
                     const PanelProducts& out) {
  for (int64_t index = 0; index < run.count; ++index) {
    for (int row_vector = 0; row_vector < kPanelRows / kVectorRows; ++row_vector) {
      multiply_float_rest<Format, kFloatTokens>(
          run, panel_of(run, index) + row_vector * kVectorRows * Format::kBytes, tokens, num_tokens,
          products_of(out, index) + row_vector * kVectorRows);
    }
  }
}

}  // namespace
}  // namespace ballast
