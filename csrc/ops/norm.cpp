#include "ops/norm.h"

#include <algorithm>
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

void layer_norm(const float* x, int64_t num_tokens, int64_t width, const float* weight, const float* bias,
                float eps, float* out) {
  for (int64_t token = 0; token < num_tokens; ++token) {
    const float* row = x + token * width;
    double sum = 0.0;
    for (int64_t i = 0; i < width; ++i) sum += row[i];
    const double mean = sum / static_cast<double>(width);
    double squares = 0.0;
    for (int64_t i = 0; i < width; ++i) squares += (row[i] - mean) * (row[i] - mean);
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(width) + static_cast<double>(eps));
    for (int64_t i = 0; i < width; ++i) {
      out[token * width + i] = static_cast<float>((row[i] - mean) * scale) * weight[i] + bias[i];
    }
  }
}

float silu(float x) { return x / (1.0f + std::exp(-x)); }

void silu_mul(const float* gate, const float* up, int64_t num, float* out) {
  for (int64_t i = 0; i < num; ++i) out[i] = silu(gate[i]) * up[i];
}

float clamped_gate(const ClampedSwiglu& unit, float gate) {
  const float within = std::min(gate, unit.limit);
  return within / (1.0f + std::exp(-unit.alpha * within));
}

float clamped_up(const ClampedSwiglu& unit, float up) {
  return std::max(-unit.limit, std::min(up, unit.limit)) + 1.0f;
}

}  // namespace ballast
