#include "ops/norm.h"

#include <cmath>

#include "ops/vector.h"

namespace ballast {

void rms_norm(const float* x, int64_t num_tokens, int64_t width, const float* weight, float eps, float* out) {
  for (int64_t token = 0; token < num_tokens; ++token) {
    const float* row = x + token * width;
    const float mean_square = dot(row, row, width) / static_cast<float>(width);
    const float scale = 1.0f / std::sqrt(mean_square + eps);
    for (int64_t i = 0; i < width; ++i) out[token * width + i] = row[i] * scale * weight[i];
  }
}

float silu(float x) { return x / (1.0f + std::exp(-x)); }

void silu_mul(const float* gate, const float* up, int64_t num, float* out) {
  for (int64_t i = 0; i < num; ++i) out[i] = silu(gate[i]) * up[i];
}

}  // namespace ballast
