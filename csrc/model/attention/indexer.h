// The lightning indexer (DeepSeek-V3.2-Exp, §2.1): selects the positions that a token attends to.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/attention/attention.h"
#include "model/attention/pooled_keys.h"
#include "model/shared/layer_tensors.h"

namespace ballast {

// The first rope_dim entries of its queries and keys are rotated. The cache keeps one key per token, or per
// pool of tokens.
class Indexer {
 public:
  Indexer(const IndexerShape& shape, int64_t rope_dim, int64_t hidden, int64_t q_lora_rank,
          LayerTensors& tensors);

  // Writes the rows of its keys, in the second plane of the cache, and the selected positions into the
  // memory. `normed` [T, D] is the layer's input, `query_down` [T, q_lora_rank] its normed low rank.
  void choose(const AttentionCall& call, const float* normed, const float* query_down,
              const LayerCache& cache) const;

 private:
  void prepare(const AttentionCall& call, int64_t token) const;
  void rotate(float* heads, int64_t num_heads, const float* cos, const float* sin) const;

  const IndexerShape shape_;
  const int64_t rope_dim_;
  const Matrix query_up_;               // [index heads * key_width, q_lora_rank]
  const Matrix key_;                    // [key_width, D]
  const std::vector<float> key_norm_;   // [key_width], of a layer norm
  const std::vector<float> key_shift_;  // [key_width]
  const Matrix head_weights_;           // [index heads, D]
  std::optional<PooledKeys> pooled_;
};

}  // namespace ballast
