// A causal convolution over the last tokens, of each channel alone, with the unit silu.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "ops/recurrent/state_rows.h"
#include "threads/thread_pool.h"

namespace ballast {

// The state of a sequence are its last `reach` inputs, the newest last.
struct ConvShape {
  int64_t channels;      // a multiple of 8
  int64_t taps;          // inputs that a token sees, its own the last; 2 or more
  int64_t dilation = 1;  // tokens from one of them to the next

  int64_t reach() const { return (taps - 1) * dilation; }      // earlier tokens that a token depends on
  int64_t state_floats() const { return reach() * channels; }  // of a slot
};

// out[t] = silu(sum of weights[j] * x[t - (taps - 1 - j) * dilation]); x, out [T, channels], weights
// [taps, channels], states [slots, reach, channels]. Null kernels stand for the reference.
void short_conv(ThreadPool& pool, const Kernels* kernels, const ConvShape& shape, const float* weights,
                const float* x, const StateRows& rows, float* states, float* out);

}  // namespace ballast
