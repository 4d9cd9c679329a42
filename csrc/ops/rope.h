// Rotary position embedding. The layout of a model's weights determines which entries form a pair.
#pragma once

#include <cstdint>

namespace ballast {

// Rotates x[t, h, (2i, 2i + 1)] by the angle whose cosine and sine are cos[t, i], sin[t, i]; x [T, H, width]
// in place, cos and sin [T, width / 2].
void rope_interleaved(float* x, int64_t num_tokens, int64_t num_heads, int64_t width, const float* cos,
                      const float* sin);

// Rotates the first `rope_width` entries of each head, x[t, h, (i, i + rope_width / 2)], in the same way; cos
// and sin [T, rope_width / 2].
void rope_half_split(float* x, int64_t num_tokens, int64_t num_heads, int64_t width, int64_t rope_width,
                     const float* cos, const float* sin);

}  // namespace ballast
