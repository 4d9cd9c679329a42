// The kernels of an instruction set: a table of functions over raw pointers.
#pragma once

#include <cstdint>

#include "cpu/attention.h"
#include "cpu/delta_rule.h"
#include "cpu/isa_list.h"
#include "cpu/isa_namespace.h"
#include "cpu/panel_layout.h"
#include "cpu/prefetching.h"
#include "cpu/sampling.h"

namespace ballast {

// Consecutive panels of one matrix.
struct PanelRun {
  const uint8_t* first;
  int64_t panel_bytes;
  int64_t count;
  int64_t cols;
  int64_t blocks_per_scale;  // of the activations that the panels are multiplied with
  const uint8_t* next;       // weights that are read after the last panel, to prefetch them; null if unknown
  Prefetching prefetching;
};

// The destination of the products of a run: 16 floats per panel and token. The tokens of a panel are
// adjacent.
struct PanelProducts {
  float* first;
  int64_t panel_stride;  // in floats: 16 times the number of tokens, or more
};

inline namespace BALLAST_ISA_NAMESPACE {

inline const uint8_t* panel_of(const PanelRun& run, int64_t index) {
  return run.first + index * run.panel_bytes;
}

inline float* products_of(const PanelProducts& products, int64_t index) {
  return products.first + index * products.panel_stride;
}

}  // namespace BALLAST_ISA_NAMESPACE

// out[p][t] = the rows of panel p times row t of `tokens`: ActivationBlocks for quantized panels, floats for
// float panels. The order of a token's sums does not depend on num_tokens.
using MultiplyPanels = void (*)(const PanelRun& run, const void* const* tokens, int64_t num_tokens,
                                const PanelProducts& out);

// Activations of many tokens in bundles of [columns][tokens], aligned to cache lines.
struct ArrangedTokens {
  const uint8_t* first;
  int64_t column_stride;  // bytes from a bundle to the next columns of the same tokens
};

// The order in which a kernel reads rounded activations, if it differs from rows. ActivationKernels::multiply
// arranges tokens for each run; callers with many short runs arrange them once. Products are the same.
struct TokenOrder {
  int64_t fewest_tokens = 0;  // minimum that can be arranged; 0: the kernel reads rows
  int64_t bundle_tokens = 0;
  int64_t bundle_cols = 0;
  int64_t bundle_bytes = 0;
  // Arranges columns from 32 * first_group, bundle_cols of them, in as many adjacent bundles as the tokens
  // need.
  void (*arrange)(const void* const* tokens, int64_t num_tokens, int64_t first_group,
                  void* bundles) = nullptr;
  // As MultiplyPanels, for fewest_tokens or more. `tokens` are the rows of the arranged tokens in the same
  // order.
  void (*multiply)(const PanelRun& run, const ArrangedTokens& arranged, const void* const* tokens,
                   int64_t num_tokens, const PanelProducts& out) = nullptr;
};

// Rounds each 32 floats to an ActivationBlock with scale = max |x| / most, and numbers to the nearest even.
// Numbers are 0 if max |x| < 2^-100; the scale is NaN if it is not finite. blocks_per_scale blocks share it.
using Quantize = void (*)(const float* x, int64_t num_blocks, int64_t blocks_per_scale, void* out);

// The block sizes of a kernel, into which callers divide their loops.
struct TokenBlock {
  int64_t chunk_cols = 0;    // columns that are multiplied with all tokens before the next columns; 0 for all
  int64_t most_tokens = 64;  // to multiply with a run of panels before the next run
  int64_t most_panels = 16;  // of gate or up in a run; more products do not fit in the caches
};

// The functions for activations of one or two bytes.
struct ActivationKernels {
  MultiplyPanels multiply[kNumPanelKinds];
  TokenBlock token_block[kNumPanelKinds];
  Quantize quantize;
  int64_t block_bytes;
  TokenOrder token_order[kNumPanelKinds] = {};
};

// The unit of experts of gpt-oss: g sigmoid(alpha g) (u + 1), where g is min(gate, limit) and u is up within
// -limit and limit.
struct ClampedSwiglu {
  float alpha;
  float limit;
};

struct Kernels {
  const char* name;
  ActivationKernels by_bytes[2];  // one, two
  // out = silu(gate) * up. n is a multiple of 8. out may be gate or up.
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out);
  void (*clamped_swiglu)(const ClampedSwiglu& unit, const float* gate, const float* up, int64_t n,
                         float* out);
  // out = sigmoid(gate) * up, under the same conditions.
  void (*sigmoid_mul)(const float* gate, const float* up, int64_t n, float* out);
  // out = exp(rate * softplus(x + shift)); n is a multiple of 8. out may be x.
  void (*softplus_decays)(const float* x, const float* shift, float rate, int64_t n, float* out);
  // out = exp(bound * sigmoid(-rate * (x + shift))), under the same conditions.
  void (*bounded_decays)(const float* x, const float* shift, float rate, float bound, int64_t n, float* out);
  AttentionKernels attention;
  DeltaRule delta_rule;
  const SamplingKernels& (*sampling)();
};

#define BALLAST_DECLARE(name, ...) const Kernels* name##_kernels();
BALLAST_ISAS(BALLAST_DECLARE)
#undef BALLAST_DECLARE

}  // namespace ballast
