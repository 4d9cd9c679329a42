// Multi-head latent attention in its absorbed form: all heads share one cached row a token, keys and values
// alike.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "threads/thread_pool.h"

namespace ballast {

// The step's tokens and where the rows of their sequences lie. Token t of request r (query_indptr[r] <= t <
// query_indptr[r + 1]) sees positions 0…positions[t]; position p lies in cache slot
// kv_indices[kv_indptr[r] + p / block_tokens] * block_tokens + p % block_tokens.
struct PagedBatch {
  int64_t num_requests;
  int64_t num_tokens;
  int64_t num_slots;
  int64_t num_indices;
  int64_t block_tokens;
  const int32_t* query_indptr;  // [num_requests + 1]
  const int32_t* positions;     // [num_tokens]
  const int32_t* kv_indptr;     // [num_requests + 1]
  const int32_t* kv_indices;    // [num_indices]

  // Throws std::invalid_argument naming the array and entry when any token would read outside the cache.
  void check() const;
};

struct AttentionShape {
  int64_t num_heads;
  int64_t row_width;    // of a query and a cache row: kv_lora_rank + rope
  int64_t value_width;  // the first entries of a cache row, which are its value: kv_lora_rank
  float scale;
};

// Row t * H + h is the query of token t's head h: value_width entries that meet the values, and the row_width
// - value_width others. Strides are in floats.
struct LatentQuery {
  const float* latent;
  int64_t latent_stride;
  const float* rope;
  int64_t rope_stride;
};

// out [T, H, value_width] from T * H queries and cache [num_slots, row_width]. `batch` has passed its check.
// A null `kernels` stands for the reference.
void mla_attention(ThreadPool& pool, const Kernels* kernels, const LatentQuery& query, const float* cache,
                   const PagedBatch& batch, const AttentionShape& shape, float* out);

// Most bytes that mla_attention keeps between positions that are attended to apart, for steps of up to
// `num_tokens` and sequences of up to `num_positions`, which share the cache.
int64_t attention_states_bytes(int64_t num_heads, int64_t value_width, int64_t num_tokens,
                               int64_t num_positions, int num_threads);

}  // namespace ballast
