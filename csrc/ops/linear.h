// Products of activations with weight matrices. The caller checks shapes; kernels do not throw.
#pragma once

#include <cstdint>

#include "quant/matrix.h"
#include "threads/thread_pool.h"

namespace ballast {

// out [T, rows] = x [T, cols] · weightᵀ
void linear(ThreadPool& pool, const float* x, int64_t num_tokens, const Matrix& weight, float* out);

// out [T, H, num_rows], out[t, h] = W_h x[t, h]; x [T, H, cols]
void head_linear(ThreadPool& pool, const float* x, int64_t num_tokens, const Matrix& weight,
                 const HeadRows& heads, float* out);

// out [T, H, cols], out[t, h] = W_hᵀ x[t, h]; x [T, H, num_rows]
void head_linear_transposed(ThreadPool& pool, const float* x, int64_t num_tokens, const Matrix& weight,
                            const HeadRows& heads, float* out);

}  // namespace ballast
