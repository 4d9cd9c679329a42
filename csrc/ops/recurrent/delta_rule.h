// The gated delta rule (arXiv 2412.06464; with a decay per row of a state, arXiv 2510.26692) for the rows of
// a step: always token after token, so the bits of a token do not depend on how a sequence is divided into
// steps.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "ops/recurrent/state_rows.h"
#include "threads/thread_pool.h"

namespace ballast {

struct DeltaShape {
  int64_t num_heads;         // of values
  int64_t num_key_heads;     // of queries and keys; divides num_heads
  int64_t key_width;         // of a head, a multiple of 4, at most kMostDeltaRows
  int64_t value_width;       // of a head, a multiple of kDeltaColumns
  bool heads_alternate;      // head h has key head h % num_key_heads, else neighbouring heads share one
  bool decays_rows = false;  // whether each row of a head's state has a decay, else the head

  int64_t key_head(int64_t head) const {
    return heads_alternate ? head % num_key_heads : head / (num_heads / num_key_heads);
  }
  int64_t decay_width() const { return num_heads * (decays_rows ? key_width : 1); }  // of a token
  int64_t state_floats() const { return num_heads * key_width * value_width; }       // of a slot
};

// Rows of T tokens, each `input_stride` floats after the one before.
struct DeltaInput {
  const float* queries;  // [num_key_heads, key_width], normed and scaled
  const float* keys;     // [num_key_heads, key_width], normed
  const float* values;   // [num_heads, value_width]
  int64_t input_stride;
  const float* decays;  // [T, num_heads] or [T, num_heads, key_width]
  const float* betas;   // [T, num_heads]
};

// out [T, num_heads, value_width]; states [slots, num_heads, key_width, value_width]. Null kernels stand for
// the reference.
void delta_rule(ThreadPool& pool, const Kernels* kernels, const DeltaShape& shape, const DeltaInput& input,
                const StateRows& rows, float* states, float* out);

}  // namespace ballast
