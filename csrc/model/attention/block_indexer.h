// The indexer of grouped attention (Qwen3.8-Flash-Next): selects blocks of neighbouring tokens by a mean key.
#pragma once

#include <cstdint>
#include <vector>

#include "model/attention/attention.h"
#include "model/attention/pooled_keys.h"
#include "model/shared/layer_tensors.h"

namespace ballast {

// All heads have the same weight. Queries are normed and rotated by their position; the mean key of a pool is
// normed, and rotated by the position of the pool's first token.
class BlockIndexer {
 public:
  BlockIndexer(const IndexerShape& shape, int64_t rope_dim, int64_t hidden, LayerTensors& tensors);

  // Writes the keys of pools, in the third plane of the cache, the states, and the selected positions into
  // the memory; normed [T, D] is the layer's input.
  void choose(const AttentionCall& call, const float* normed, const LayerCache& cache) const;

 private:
  void norm_and_rotate(const AttentionCall& call, const std::vector<float>& norm, int64_t num_heads,
                       int64_t position, float* heads) const;

  const IndexerShape shape_;
  const int64_t rope_dim_;
  const Matrix query_;                   // [index heads * key_width, D]
  const Matrix key_;                     // [key_width, D]
  const std::vector<float> query_norm_;  // [key_width]
  const std::vector<float> key_norm_;    // [key_width]
  const PooledKeys pooled_;
};

}  // namespace ballast
