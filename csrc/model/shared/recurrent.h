// Code shared by the layers with the gated delta rule.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ballast {

// [channels, taps] → [taps, channels], so that a tap's weights are adjacent.
std::vector<float> by_tap(const std::vector<float>& weights, int64_t taps);

// Makes each head one of length `scale`. They are normed without weights.
void norm_heads(float* heads, int64_t num_heads, int64_t width, float scale);

// Refuses heads whose widths the kernels do not compute, and a convolution that sees no earlier token.
void check_heads_and_taps(const std::string& layer, int64_t key_dim, int64_t v_dim, int64_t conv_taps);

}  // namespace ballast
