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

}  // namespace ballast
