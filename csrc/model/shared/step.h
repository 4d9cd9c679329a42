// Data that the layers of a forward pass share: a step's input, the tables of positions, the cache.
#pragma once

#include <cstdint>
#include <vector>

#include "base/index_range.h"
#include "ops/attention/paged_attention.h"
#include "ops/recurrent/state_rows.h"
#include "threads/thread_pool.h"

namespace ballast {

// Cosine and sine of every position's angles, both [num_positions, dim / 2].
struct RopeTable {
  const float* cos;
  const float* sin;
  int64_t num_positions;
  int64_t dim;                         // entries of a head that are rotated
  const float* query_scale = nullptr;  // [positions] factor of a token's queries; null: 1
};

// A layer's part of the cache: its planes, each [num_slots, width]. The layer's attention defines them.
using LayerPlanes = std::vector<CachePlane>;

// What a layer keeps of sequences.
struct LayerCache {
  LayerPlanes planes;
  // Its recurrent states, each [num_state_slots, floats]; the null slot is not used.
  std::vector<float*> states;
};

struct KvCache {
  std::vector<LayerCache> layers;
  int64_t num_slots;         // of layers without a window
  int64_t num_window_slots;  // of layers with one
  int64_t num_state_slots;   // of recurrent state, the null slot included
};

// One step's input.
struct Step {
  const int32_t* token_ids;  // [T]
  const int32_t* slots;      // [T], where each token's row goes
  PagedBatch batch;
  const int32_t* window_slots;  // [T], as `slots`, in layers with a window
  PagedBatch window_batch;      // as `batch`, in layers with a window
  StateRows states;             // of layers with recurrent state
  const int64_t* sampled;       // [num_sampled], the tokens whose logits are wanted
  int64_t num_sampled;
  // [requests, kEarlierTokens] the tokens before each request's first, the nearest last; kNoToken before a
  // sequence's begin. Null: there are none.
  const int32_t* earlier_ids = nullptr;

  int64_t num_tokens() const { return batch.num_tokens; }
};

// A few tokens are not worth waking a thread: they make one task, which the caller runs itself.
template <class PerToken>
void for_tokens(ThreadPool& pool, int64_t num_tokens, const PerToken& per_token) {
  constexpr int64_t kTaskTokens = 4;
  const Chunks chunks(num_tokens, kTaskTokens);
  pool.parallel_for(chunks.count(), [&](int64_t task) {
    const IndexRange tokens = chunks[task];
    for (int64_t token = tokens.begin; token < tokens.end; ++token) per_token(token);
  });
}

// Makes `buffer` hold num_tokens rows, if it does not yet.
template <class Buffer>
void grow(Buffer& buffer, int64_t num_tokens, int64_t width) {
  const size_t size = static_cast<size_t>(num_tokens * width);
  if (buffer.size() < size) buffer.resize(size);
}

}  // namespace ballast
