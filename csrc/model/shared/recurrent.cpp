#include "model/shared/recurrent.h"

#include <cmath>

#include "cpu/delta_rule.h"
#include "model/shared/fits.h"
#include "ops/vector.h"

namespace ballast {

std::vector<float> by_tap(const std::vector<float>& weights, int64_t taps) {
  const int64_t channels = static_cast<int64_t>(weights.size()) / taps;
  std::vector<float> out(weights.size());
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t tap = 0; tap < taps; ++tap) {
      out[static_cast<size_t>(tap * channels + c)] = weights[static_cast<size_t>(c * taps + tap)];
    }
  }
  return out;
}

void norm_heads(float* heads, int64_t num_heads, int64_t width, float scale) {
  constexpr float kEps = 1e-6f;
  for (int64_t head = 0; head < num_heads; ++head, heads += width) {
    const float norm = 1.0f / std::sqrt(dot(heads, heads, width) + kEps);
    for (int64_t i = 0; i < width; ++i) heads[i] = heads[i] * norm * scale;
  }
}

void check_heads_and_taps(const std::string& layer, int64_t key_dim, int64_t v_dim, int64_t conv_taps) {
  require(key_dim % 8 == 0 && key_dim <= kMostDeltaRows && v_dim % kDeltaColumns == 0,
          layer + " has heads of " + std::to_string(key_dim) + " and " + std::to_string(v_dim) +
              " numbers; expected multiples of 8, at most " + std::to_string(kMostDeltaRows) + ", and of " +
              std::to_string(kDeltaColumns));
  require(conv_taps >= 2,
          layer + " has a convolution of " + std::to_string(conv_taps) + " taps; expected 2 or more");
}

}  // namespace ballast
