// What an instruction set offers, as a table of functions over raw pointers.
#pragma once

#include <cstdint>

#include "cpu/attention.h"
#include "cpu/cpu_features.h"
#include "cpu/panel_layout.h"

namespace ballast {

// out [T, 16] = the panel's rows times each of num_tokens rows of `cols` activations: ActivationBlocks for a
// quantised panel, floats for a float one. A token's sums are formed in one order, whatever num_tokens.
using MultiplyPanel = void (*)(const uint8_t* panel, int64_t cols, const void* const* tokens,
                               int64_t num_tokens, float* out);

// Each 32 floats to one ActivationBlock: scale = max |x| / most, numbers = x * (most / max |x|) to the
// nearest even, or all 0 where max |x| is below 2^-100. A NaN or an infinity makes the scale NaN and the
// numbers 0.
using Quantize = void (*)(const float* x, int64_t num_blocks, void* out);

// Functions for activations of one number of bytes.
struct ActivationKernels {
  MultiplyPanel multiply[kNumPanelKinds];
  Quantize quantize;
  int64_t block_bytes;
};

struct Kernels {
  const char* name;
  CpuFeatures needs;
  ActivationKernels by_bytes[2];  // one, two
  // out = silu(gate) * up, n a multiple of 8; out may be gate or up.
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out);
  AttentionKernels attention;
};

// One for each folder beside this file.
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();

}  // namespace ballast
