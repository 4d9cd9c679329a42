#include "ops/rope.h"

namespace ballast {

void rope_interleaved(float* x, int64_t num_tokens, int64_t num_heads, int64_t width, const float* cos,
                      const float* sin) {
  const int64_t num_pairs = width / 2;
  for (int64_t token = 0; token < num_tokens; ++token) {
    const float* c = cos + token * num_pairs;
    const float* s = sin + token * num_pairs;
    for (int64_t head = 0; head < num_heads; ++head) {
      float* row = x + (token * num_heads + head) * width;
      for (int64_t i = 0; i < num_pairs; ++i) {
        const float a = row[2 * i];
        const float b = row[2 * i + 1];
        row[2 * i] = a * c[i] - b * s[i];
        row[2 * i + 1] = a * s[i] + b * c[i];
      }
    }
  }
}

void rope_half_split(float* x, int64_t num_tokens, int64_t num_heads, int64_t width, int64_t rope_width,
                     const float* cos, const float* sin) {
  const int64_t num_pairs = rope_width / 2;
  for (int64_t token = 0; token < num_tokens; ++token) {
    const float* c = cos + token * num_pairs;
    const float* s = sin + token * num_pairs;
    for (int64_t head = 0; head < num_heads; ++head) {
      float* first = x + (token * num_heads + head) * width;
      float* second = first + num_pairs;
      for (int64_t i = 0; i < num_pairs; ++i) {
        const float a = first[i];
        const float b = second[i];
        first[i] = a * c[i] - b * s[i];
        second[i] = a * s[i] + b * c[i];
      }
    }
  }
}

}  // namespace ballast
