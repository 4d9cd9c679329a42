// Attention over the paged cache. Heads of queries share those of the cache in equal groups (GQA: arXiv
// 2305.13245). Latent attention in its absorbed form is the case of one head of the cache, whose values lie
// within its keys.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "base/index_range.h"
#include "cpu/kernels.h"
#include "ops/attention/cache_plane.h"
#include "threads/thread_pool.h"

namespace ballast {

// The step's tokens and the cache slots of their sequences. Token t of request r (query_indptr[r] <= t <
// query_indptr[r + 1]) sees positions 0…positions[t].
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

  // The cache slot of a request's position.
  int64_t slot(int64_t request, int64_t position) const {
    const int64_t block = kv_indices[kv_indptr[request] + position / block_tokens];
    return block * block_tokens + position % block_tokens;
  }
  int64_t request_of(int64_t token) const {
    const int32_t* ends = query_indptr + 1;
    return std::upper_bound(ends, ends + num_requests, token) - ends;
  }

  // Throws std::invalid_argument naming the array and entry when any token would read outside the cache.
  void check() const;
};

struct AttentionShape {
  int64_t num_heads;     // of the queries
  int64_t num_kv_heads;  // of the cache, each of which num_heads / num_kv_heads neighbouring ones share
  int64_t key_width;     // of a query as well
  int64_t value_width;
  float scale;
  // A token sees this many positions up to its own; 0 for all.
  int64_t window = 0;
  // [num_heads], the score of a further position without a value; null for none (arXiv 2309.17453).
  const float* sinks = nullptr;

  int64_t group_heads() const { return num_heads / num_kv_heads; }
};

// Neighbouring entries of every query: row t * H + h is of token t's head h. Strides are in floats.
struct QueryPart {
  const float* rows;
  int64_t stride;
  int64_t width;
};

// Queries in two parts, the second after the first; together as wide as keys.
struct AttentionQuery {
  QueryPart first;
  QueryPart second;
};

// Cached rows of every slot: keys or values. Strides are in numbers.
struct CacheRows {
  CachePlane plane;
  int64_t slot_stride;
  int64_t head_stride;
};

// The positions that each token attends to, ascending, where these are not all that it sees.
struct ChosenPositions {
  const int32_t* rows;    // [T, stride], of which each token's first `counts` are
  const int32_t* counts;  // [T], at least 1
  int64_t stride;
};

// The rows that each token attends to, where these are not those of cache slots alone.
struct ListedRows {
  const int32_t* counts;  // [T], at least 1
  // Writes where rows `range` of a token's list are; a row's first value_width floats are its value. Called
  // by several threads.
  std::function<void(int64_t request, int64_t token, IndexRange range, const void** rows)> locate;
};

// out [T, H, value_width]. Keys and values have one type; where they share a plane, values begin the keys.
// `batch` has passed its check. A null `kernels` stands for the reference, a null
// `chosen` for all positions that a token sees. Windows and chosen positions exclude each other.
void paged_attention(ThreadPool& pool, const Kernels* kernels, const AttentionQuery& query,
                     const CacheRows& keys, const CacheRows& values, const PagedBatch& batch,
                     const AttentionShape& shape, float* out, const ChosenPositions* chosen = nullptr);

// The same to listed rows, which all heads share: num_kv_heads is 1, and there is no window.
void listed_attention(ThreadPool& pool, const Kernels* kernels, const AttentionQuery& query,
                      const ListedRows& listed, const PagedBatch& batch, const AttentionShape& shape,
                      float* out);

// Maximum bytes of paged_attention's partial results, for steps of up to `num_tokens` and sequences of up to
// `num_positions` positions that share the cache.
int64_t attention_states_bytes(int64_t num_heads, int64_t num_kv_heads, int64_t value_width,
                               int64_t num_tokens, int64_t num_positions, int num_threads);

}  // namespace ballast
