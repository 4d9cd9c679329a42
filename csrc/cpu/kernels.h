// The kernels of an instruction set, as a table of functions over raw pointers.
#pragma once

#include <cstdint>

#include "cpu/attention.h"
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
  int64_t blocks_per_scale;  // of the activations that they are multiplied with
  const uint8_t* next;       // what is read after the last panel, to be prefetched; null if unknown
  Prefetching prefetching;
};

// Where the products with a run go: 16 floats for each panel and token, a panel's tokens side by side.
struct PanelProducts {
  float* first;
  int64_t panel_stride;  // floats, 16 times the number of tokens or more
};

inline namespace BALLAST_ISA_NAMESPACE {

inline const uint8_t* panel_of(const PanelRun& run, int64_t index) {
  return run.first + index * run.panel_bytes;
}

inline float* products_of(const PanelProducts& products, int64_t index) {
  return products.first + index * products.panel_stride;
}

}  // namespace BALLAST_ISA_NAMESPACE

// out[p][t] = the rows of panel p times row t of num_tokens rows of `cols` activations: ActivationBlocks for
// quantised panels, floats for float ones. A token's sums are formed in one order, whatever num_tokens.
using MultiplyPanels = void (*)(const PanelRun& run, const void* const* tokens, int64_t num_tokens,
                                const PanelProducts& out);

// Activations of many tokens as bundles of [columns][tokens], at the border of a cache line.
struct ArrangedTokens {
  const uint8_t* first;
  int64_t column_stride;  // bytes from a bundle to that of the same tokens' next columns
};

// The order in which a kernel reads rounded activations, where it is not the rows' own. Its `multiply` of
// ActivationKernels arranges tokens for each run of panels anew; a caller that multiplies the same tokens
// with many short runs arranges them once and calls this `multiply`. Products are the same.
struct TokenOrder {
  int64_t fewest_tokens = 0;  // that can be arranged; 0 where rows are read as they lie
  int64_t bundle_tokens = 0;
  int64_t bundle_cols = 0;
  int64_t bundle_bytes = 0;
  // Arranges columns 32 * first_group … + bundle_cols, in as many neighbouring bundles as hold the tokens.
  void (*arrange)(const void* const* tokens, int64_t num_tokens, int64_t first_group,
                  void* bundles) = nullptr;
  // As MultiplyPanels, for fewest_tokens or more; `tokens` are the rows of the arranged tokens, in their
  // order.
  void (*multiply)(const PanelRun& run, const ArrangedTokens& arranged, const void* const* tokens,
                   int64_t num_tokens, const PanelProducts& out) = nullptr;
};

// Each 32 floats to one ActivationBlock: scale = max |x| / most, numbers = x * (most / max |x|) to the
// nearest even, or all 0 where max |x| is below 2^-100. A NaN or an infinity makes the scale NaN and the
// numbers 0. The maximum is that of blocks_per_scale neighbouring blocks; num_blocks is a multiple of them.
using Quantize = void (*)(const float* x, int64_t num_blocks, int64_t blocks_per_scale, void* out);

// How a kernel blocks a product: the sizes that callers cut their loops into.
struct TokenBlock {
  int64_t piece_cols = 0;    // columns that are multiplied with all tokens before the next are; 0 for all
  int64_t most_tokens = 64;  // to multiply with a run of panels before the next run
  int64_t most_panels = 16;  // of gate or up in a run: with more, products fall out of the nearer caches
};

// The functions for activations of one or of two bytes.
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
  // out = silu(gate) * up, n a multiple of 8; out may be gate or up.
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out);
  void (*clamped_swiglu)(const ClampedSwiglu& unit, const float* gate, const float* up, int64_t n,
                         float* out);
  AttentionKernels attention;
  const SamplingKernels& (*sampling)();
};

#define BALLAST_DECLARE(name, ...) const Kernels* name##_kernels();
BALLAST_ISAS(BALLAST_DECLARE)
#undef BALLAST_DECLARE

}  // namespace ballast
