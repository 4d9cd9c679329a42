// What an instruction set offers, as a table of functions over raw pointers.
#pragma once

#include <cstdint>

#include "cpu/attention.h"
#include "cpu/cpu_features.h"
#include "cpu/panel_layout.h"

namespace ballast {

// out [T, 16] = the panel's rows times each of num_tokens rows of `cols` activations: ActivationBlock for a
// quantised panel, float for a float one. A token's sums are formed in one order, whatever num_tokens.
using MultiplyPanel = void (*)(const uint8_t* panel, int64_t cols, const void* const* tokens,
                               int64_t num_tokens, float* out);

struct Kernels {
  const char* name;
  CpuFeatures needs;
  MultiplyPanel multiply[kNumPanelKinds];
  // Each 32 floats to one block: scale = max |x| / 127, quants = x * (127 / max |x|) to the nearest even, or
  // all 0 where max |x| is below 2^-100. A NaN or an infinity makes the scale NaN and the quants 0.
  void (*quantize)(const float* x, int64_t num_blocks, ActivationBlock* out);
  // out = silu(gate) * up, n a multiple of 8; out may be gate or up.
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out);
  AttentionKernels attention;
};

// One for each folder beside this file.
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();

}  // namespace ballast
