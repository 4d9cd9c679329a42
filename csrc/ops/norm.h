// Norms of single rows.
#pragma once

#include <cstdint>

namespace ballast {

// out[t] = x[t] / sqrt(mean(x[t]²) + eps) * weight; x, out [T, width], weight [width]. out may be x.
void rms_norm(const float* x, int64_t num_tokens, int64_t width, const float* weight, float eps, float* out);

// out[t] = (x[t] - mean(x[t])) / sqrt(variance(x[t]) + eps) * weight + bias, with sums in double; x, out
// [T, width], weight, bias [width]. out may be x.
void layer_norm(const float* x, int64_t num_tokens, int64_t width, const float* weight, const float* bias,
                float eps, float* out);

}  // namespace ballast
