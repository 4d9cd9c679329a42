// Rotary position embedding over interleaved pairs, as GGUF's DeepSeek weights expect it.
#pragma once

#include <cstdint>

namespace ballast {

// Rotates x[t, h, (2i, 2i + 1)] by the angle whose cosine and sine are cos[t, i], sin[t, i]; x [T, H, width]
// in place, cos and sin [T, width / 2].
void rope_interleaved(float* x, int64_t num_tokens, int64_t num_heads, int64_t width, const float* cos,
                      const float* sin);

}  // namespace ballast
