#include "model/attention/indexer.h"

#include <algorithm>
#include <cmath>

#include "ops/attention/position_choice.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace ballast {
namespace {

// Epsilon of the layer norm, as in DeepSeek's code and llama.cpp; model files do not contain it.
constexpr float kNormEps = 1e-6f;

}  // namespace

Indexer::Indexer(const IndexerShape& shape, int64_t rope_dim, int64_t hidden, int64_t q_lora_rank,
                 LayerTensors& tensors)
    : shape_(shape),
      rope_dim_(rope_dim),
      query_up_(tensors.matrix("index_query_up", shape.num_heads * shape.key_width, q_lora_rank)),
      key_(tensors.matrix("index_key", shape.key_width, hidden)),
      key_norm_(tensors.vector("index_key_norm", shape.key_width)),
      key_shift_(tensors.vector("index_key_shift", shape.key_width)),
      head_weights_(tensors.matrix("index_head_weights", shape.num_heads, hidden)) {
  if (shape.pool > 1) pooled_.emplace(shape, hidden, tensors);
}

void Indexer::rotate(float* heads, int64_t num_heads, const float* cos, const float* sin) const {
  if (shape_.pairs_apart) {
    rope_half_split(heads, 1, num_heads, shape_.key_width, rope_dim_, cos, sin);
    return;
  }
  for (int64_t head = 0; head < num_heads; ++head) {
    rope_interleaved(heads + head * shape_.key_width, 1, 1, rope_dim_, cos, sin);
  }
}

// Norms and rotates a token's key, rotates its queries, and scales the weights of its heads.
void Indexer::prepare(const AttentionCall& call, int64_t token) const {
  AttentionMemory& s = call.memory;
  const int64_t pairs = call.step.batch.positions[token] * (rope_dim_ / 2);
  float* key = s.index_key.data() + token * shape_.key_width;
  layer_norm(key, 1, shape_.key_width, key_norm_.data(), key_shift_.data(), kNormEps, key);
  if (rope_dim_ > 0) {
    const float* cos = call.rope.cos + pairs;
    const float* sin = call.rope.sin + pairs;
    rotate(key, 1, cos, sin);
    rotate(s.index_query.data() + token * shape_.num_heads * shape_.key_width, shape_.num_heads, cos, sin);
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape_.num_heads * shape_.key_width));
  float* weights = s.head_weights.data() + token * shape_.num_heads;
  for (int64_t head = 0; head < shape_.num_heads; ++head) weights[head] *= scale;
}

void Indexer::choose(const AttentionCall& call, const float* normed, const float* query_down,
                     const LayerCache& cache) const {
  const IndexerShape& shape = shape_;
  const int64_t num_tokens = call.step.num_tokens();
  AttentionMemory& s = call.memory;
  grow(s.index_query, num_tokens, shape.num_heads * shape.key_width);
  grow(s.index_key, num_tokens, shape.key_width);
  grow(s.head_weights, num_tokens, shape.num_heads);
  grow(s.chosen, num_tokens, shape.most_chosen());
  grow(s.num_chosen, num_tokens, 1);
  linear(call.pool, query_down, num_tokens, query_up_, s.index_query.data());
  linear(call.pool, normed, num_tokens, key_, s.index_key.data());
  linear(call.pool, normed, num_tokens, head_weights_, s.head_weights.data());
  const CachePlane& keys = cache.planes[1];
  for_tokens(call.pool, num_tokens, [&](int64_t token) {
    prepare(call, token);
    if (pooled_) return;
    keys.write(call.kernels, call.step.slots[token] * shape.key_width,
               s.index_key.data() + token * shape.key_width, shape.key_width);
  });
  if (pooled_) {
    pooled_->write(call, normed, s.index_key.data(), keys, cache.states[0]);
    choose_pools(call, shape, keys);
    return;
  }
  choose_positions(call.pool, call.kernels, s.index_query.data(), s.head_weights.data(),
                   {keys, shape.key_width, 0}, call.step.batch,
                   {shape.num_heads, shape.key_width, shape.top_k}, s.chosen.data(), s.num_chosen.data());
}

}  // namespace ballast
