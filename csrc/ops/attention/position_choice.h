// Selects the positions that a token attends to, for models with an indexer (DeepSeek-V3.2-Exp, §2.1): a few
// small heads score every visible position, and the positions with the highest scores are selected.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "ops/attention/paged_attention.h"
#include "threads/thread_pool.h"

namespace ballast {

struct IndexShape {
  int64_t num_heads;
  int64_t key_width;  // of a query as well; the cache holds one key a slot
  int64_t top_k;      // positions of a token, or entries of several positions, at most
};

// Writes the positions of the k highest of num_scores scores, ascending; of equal scores the lower
// positions'. Returns how many there are, min(k, num_scores). NaN counts as the highest score.
int64_t choose_top(const float* scores, int64_t num_scores, int64_t k, int32_t* chosen);

// For each token, chosen [T, top_k], its first counts [T] entries: all positions that it sees where these are
// top_k or fewer, else the top_k of the highest scores, sum over heads of weight * max(0, query · key).
// queries [T, H, key_width], weights [T, H]. A token's choice depends on its own row and sequence alone.
// `batch` has passed its check. A null `kernels` stands for the reference.
void choose_positions(ThreadPool& pool, const Kernels* kernels, const float* queries, const float* weights,
                      const CacheRows& keys, const PagedBatch& batch, const IndexShape& shape,
                      int32_t* chosen, int32_t* counts);

// Most bytes that choose_positions uses in addition to its arguments, for steps of up to `num_tokens` and
// sequences of up to `num_positions`.
int64_t position_choice_bytes(int64_t num_heads, int64_t key_width, int64_t num_tokens, int64_t num_positions,
                              int num_threads);

}  // namespace ballast
