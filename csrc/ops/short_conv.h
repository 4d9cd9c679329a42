// A causal convolution over the last tokens, of each channel alone, with the unit silu.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "ops/state_rows.h"
#include "threads/thread_pool.h"

namespace ballast {

// The state of a sequence are its last taps - 1 inputs, the newest last.
struct ConvShape {
  int64_t channels;  // a multiple of 8
  int64_t taps;      // inputs that a token sees, its own the last; 2 or more

  int64_t state_floats() const { return (taps - 1) * channels; }  // of a slot
};

// out[t] = silu(sum of weights[j] * x[t - taps + 1 + j]); x, out [T, channels], weights [taps, channels],
// states [slots, taps - 1, channels]. Null kernels stand for the reference.
void short_conv(ThreadPool& pool, const Kernels* kernels, const ConvShape& shape, const float* weights,
                const float* x, const StateRows& rows, float* states, float* out);

}  // namespace ballast
