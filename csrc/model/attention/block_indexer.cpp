#include "model/attention/block_indexer.h"

#include <algorithm>
#include <cmath>

#include "model/shared/fits.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace ballast {
namespace {

IndexerShape checked(const IndexerShape& shape, int64_t rope_dim, const std::string& layer) {
  require(shape.num_heads > 0 && shape.top_k > 0 && shape.pool > 1 && shape.averages,
          layer + " chooses " + std::to_string(shape.top_k) + " positions in pools of " +
              std::to_string(shape.pool) + " by " + std::to_string(shape.num_heads) +
              " heads; expected mean keys, pools of 2 or more, and at least 1 of the others");
  require(shape.key_width >= rope_dim, layer + " has index keys of " + std::to_string(shape.key_width) +
                                           "; expected at least " + std::to_string(rope_dim) +
                                           " entries, which are rotated");
  return shape;
}

}  // namespace

BlockIndexer::BlockIndexer(const IndexerShape& shape, int64_t rope_dim, int64_t hidden, LayerTensors& tensors)
    : shape_(checked(shape, rope_dim, tensors.layer())),
      rope_dim_(rope_dim),
      query_(tensors.matrix("index_query", shape.num_heads * shape.key_width, hidden)),
      key_(tensors.matrix("index_key", shape.key_width, hidden)),
      query_norm_(tensors.vector("index_query_norm", shape.key_width)),
      key_norm_(tensors.vector("index_key_norm", shape.key_width)),
      pooled_(shape, hidden, tensors) {}

void BlockIndexer::norm_and_rotate(const AttentionCall& call, const std::vector<float>& norm,
                                   int64_t num_heads, int64_t position, float* heads) const {
  const int64_t pairs = position * (rope_dim_ / 2);
  rms_norm(heads, num_heads, shape_.key_width, norm.data(), call.rms_eps, heads);
  rope_half_split(heads, 1, num_heads, shape_.key_width, rope_dim_, call.rope.cos + pairs,
                  call.rope.sin + pairs);
}

void BlockIndexer::choose(const AttentionCall& call, const float* normed, const LayerCache& cache) const {
  const int64_t num_tokens = call.step.num_tokens(), num_heads = shape_.num_heads;
  AttentionMemory& s = call.memory;
  grow(s.index_query, num_tokens, num_heads * shape_.key_width);
  grow(s.index_key, num_tokens, shape_.key_width);
  grow(s.head_weights, num_tokens, num_heads);
  grow(s.chosen, num_tokens, shape_.most_chosen());
  grow(s.num_chosen, num_tokens, 1);
  linear(call.pool, normed, num_tokens, query_, s.index_query.data());
  linear(call.pool, normed, num_tokens, key_, s.index_key.data());
  std::fill_n(s.head_weights.begin(), num_tokens * num_heads,
              1.0f / std::sqrt(static_cast<float>(shape_.key_width)));
  for_tokens(call.pool, num_tokens, [&](int64_t token) {
    norm_and_rotate(call, query_norm_, num_heads, call.step.batch.positions[token],
                    s.index_query.data() + token * num_heads * shape_.key_width);
  });
  pooled_.write(call, normed, s.index_key.data(), cache.planes[2], cache.states[0],
                [&](int64_t position, float* key) { norm_and_rotate(call, key_norm_, 1, position, key); });
  choose_pools(call, shape_, cache.planes[2]);
}

}  // namespace ballast
