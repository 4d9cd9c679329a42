// The gated delta rule (arXiv 2412.06464) of some columns of a head's state, token after token.
//
// Only plain data: this header is compiled into objects for instruction sets that the host may not have.
#pragma once

#include <cstdint>

namespace ballast {

// Columns of a tile. With 128 rows a tile takes 16 KiB, so it stays in the first-level cache while the tokens
// pass.
constexpr int64_t kDeltaColumns = 32;
constexpr int64_t kMostDeltaRows = 1024;

// For each token: state *= decay; change = beta * (value - key · state); state += key ⊗ change;
// out = query · state. Kimi Delta Attention (arXiv 2510.26692) has a decay for each row of the state. Numbers
// of successive tokens are a stride apart.
struct DeltaTile {
  float* state;       // [key_width][kDeltaColumns], before the first token, then after the last one
  int64_t key_width;  // a multiple of 4, at most kMostDeltaRows
  int64_t num_tokens;
  const float* queries;  // [key_width]
  const float* keys;     // [key_width]
  const float* values;   // [kDeltaColumns]
  int64_t input_stride;  // of queries, keys and values
  bool decays_rows;      // whether each row of the state has a decay, else all have one
  const float* decays;   // [key_width], or one number
  int64_t decay_stride;
  const float* betas;  // one number
  int64_t beta_stride;
  float* out;  // [kDeltaColumns]
  int64_t out_stride;
};

// What a token gives and leaves depends only on the state before it and on its own numbers.
using DeltaRule = void (*)(const DeltaTile& tile);

// Runs on every CPU.
void reference_delta_rule(const DeltaTile& tile);

}  // namespace ballast
