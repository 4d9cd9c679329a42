#include <algorithm>

#include "model/attention/attention.h"
#include "model/attention/indexer.h"
#include "model/shared/fits.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace ballast {
namespace {

LatentShape checked(const LatentShape& shape, const LayerTensors& tensors) {
  if (!shape.index) return shape;
  const IndexerShape& index = *shape.index;
  const std::string& layer = tensors.layer();
  require(index.num_heads > 0 && index.top_k > 0, layer + " chooses " + std::to_string(index.top_k) +
                                                      " positions by " + std::to_string(index.num_heads) +
                                                      " heads; expected at least 1 of each");
  require(index.key_width >= shape.rope_dim, layer + " has index keys of " + std::to_string(index.key_width) +
                                                 "; expected at least " + std::to_string(shape.rope_dim) +
                                                 " entries, which are rotated");
  require(shape.rotates || shape.rope_dim == 0, layer + " has an indexer that rotates " +
                                                    std::to_string(shape.rope_dim) +
                                                    " entries; expected 0, because positions rotate nothing");
  require(tensors.has("query_down"), layer + " has an indexer, but no query_down, which it reads");
  return shape;
}

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), absorbed: the cache holds one row a token, the
// normed latent and then the rotated key; queries are carried into the latent space by W_UK and results out
// of it by W_UV. Pairs of the rotation are neighbours. Queries go through a low rank in V2 and V3, and
// straight in V2-Lite.
class LatentAttention final : public Attention {
 public:
  LatentAttention(const LatentShape& shape, int64_t hidden, LayerTensors& tensors)
      : shape_(checked(shape, tensors)),
        kv_a_(tensors.matrix("kv_a", shape.latent_dim(), hidden)),
        kv_a_norm_(tensors.vector("kv_a_norm", shape.kv_lora_rank)),
        k_up_(tensors.heads_either_way("k_up", shape.num_heads, shape.kv_lora_rank, shape.nope_dim)),
        v_up_(tensors.heads("v_up", shape.num_heads, shape.v_dim, shape.kv_lora_rank)),
        output_(tensors.matrix("output", hidden, shape.num_heads * shape.v_dim)) {
    int64_t query_width = hidden;
    if (tensors.has("query_down")) {
      query_down_ = tensors.matrix_of_width("query_down", hidden);
      query_width = query_down_->rows();
      query_norm_ = tensors.vector("query_norm", query_width);
    }
    query_up_ = tensors.matrix("query_up", shape.num_heads * shape.query_dim(), query_width);
    if (shape.index && tensors.has("index_key")) {
      indexer_.emplace(*shape.index, shape.rope_dim, hidden, query_width, tensors);
    }
  }

  std::vector<int64_t> plane_widths() const override {
    if (!indexer_) return {shape_.latent_dim()};
    return {shape_.latent_dim(), shape_.index->key_width / shape_.index->pool};
  }
  std::vector<int64_t> state_floats() const override {
    if (!indexer_ || shape_.index->pool == 1) return {};
    return {PooledKeys::state_floats(*shape_.index)};
  }
  int64_t rope_dim() const override { return shape_.rotates ? shape_.rope_dim : 0; }
  const IndexerShape* index() const override { return shape_.index ? &*shape_.index : nullptr; }
  bool has_indexer() const override { return indexer_.has_value(); }
  void attend(const AttentionCall& call, const float* normed, const LayerCache& cache,
              float* out) const override;

 private:
  void reserve(AttentionMemory& memory, int64_t num_tokens) const;
  void queries(const AttentionCall& call, const float* x) const;
  void rotate_and_store(const AttentionCall& call, const CachePlane& cache) const;

  const LatentShape shape_;
  const Matrix kv_a_;                   // [kv_lora_rank + rope, D]
  const std::vector<float> kv_a_norm_;  // [kv_lora_rank]
  const HeadMatrix k_up_;               // W_UK, a head: [kv_lora_rank, nope], or transposed
  const HeadMatrix v_up_;               // W_UV, a head: [v, kv_lora_rank]
  const Matrix output_;                 // [D, H * v]
  std::optional<Matrix> query_down_;    // [q_lora_rank, D]
  std::vector<float> query_norm_;       // [q_lora_rank]
  std::optional<Matrix> query_up_;      // [H * (nope + rope), q_lora_rank or D]
  std::optional<Indexer> indexer_;
};

void LatentAttention::reserve(AttentionMemory& memory, int64_t num_tokens) const {
  const LatentShape& shape = shape_;
  if (query_down_) grow(memory.query_down, num_tokens, query_down_->rows());
  grow(memory.query, num_tokens, shape.num_heads * shape.query_dim());
  grow(memory.query_nope, num_tokens, shape.num_heads * shape.nope_dim);
  grow(memory.query_latent, num_tokens, shape.num_heads * shape.kv_lora_rank);
  grow(memory.latent, num_tokens, shape.latent_dim());
  grow(memory.attended, num_tokens, shape.num_heads * shape.kv_lora_rank);
  grow(memory.values, num_tokens, shape.num_heads * shape.v_dim);
}

void LatentAttention::queries(const AttentionCall& call, const float* x) const {
  const int64_t num_tokens = call.step.num_tokens();
  if (query_down_) {
    float* down = call.memory.query_down.data();
    const int64_t rank = query_down_->rows();
    linear(call.pool, x, num_tokens, *query_down_, down);
    for_tokens(call.pool, num_tokens, [&](int64_t token) {
      rms_norm(down + token * rank, 1, rank, query_norm_.data(), call.rms_eps, down + token * rank);
    });
    x = down;
  }
  linear(call.pool, x, num_tokens, *query_up_, call.memory.query.data());
}

// Each token's latent is normed and its key rotated into the cache; its queries are scaled by their position
// and rotated, and their other part laid side by side.
void LatentAttention::rotate_and_store(const AttentionCall& call, const CachePlane& cache) const {
  const LatentShape& shape = shape_;
  const int64_t rank = shape.kv_lora_rank;
  const int64_t num_pairs = shape.rope_dim / 2;
  AttentionMemory& memory = call.memory;
  for_tokens(call.pool, call.step.num_tokens(), [&](int64_t token) {
    const int64_t position = call.step.batch.positions[token];
    const auto rotate = [&](float* entries) {
      if (!shape.rotates) return;
      rope_interleaved(entries, 1, 1, shape.rope_dim, call.rope.cos + position * num_pairs,
                       call.rope.sin + position * num_pairs);
    };
    float* row = memory.latent.data() + token * shape.latent_dim();
    rms_norm(row, 1, rank, kv_a_norm_.data(), call.rms_eps, row);
    rotate(row + rank);
    cache.write(call.kernels, call.step.slots[token] * shape.latent_dim(), row, shape.latent_dim());
    const float* scale = call.rope.query_scale ? call.rope.query_scale + position : nullptr;
    for (int64_t head = 0; head < shape.num_heads; ++head) {
      const int64_t index = token * shape.num_heads + head;
      float* query = memory.query.data() + index * shape.query_dim();
      if (scale) std::transform(query, query + shape.query_dim(), query, [&](float x) { return x * *scale; });
      std::copy_n(query, shape.nope_dim, memory.query_nope.data() + index * shape.nope_dim);
      rotate(query + shape.nope_dim);
    }
  });
}

// DeepSeek-V2 §2.1.2, appendix C.
void LatentAttention::attend(const AttentionCall& call, const float* normed, const LayerCache& cache,
                             float* out) const {
  const LatentShape& shape = shape_;
  const int64_t num_tokens = call.step.num_tokens();
  const int64_t num_heads = shape.num_heads;
  AttentionMemory& s = call.memory;
  reserve(s, num_tokens);
  queries(call, normed);
  linear(call.pool, normed, num_tokens, kv_a_, s.latent.data());
  rotate_and_store(call, cache.planes[0]);
  const ChosenPositions* chosen = nullptr;
  ChosenPositions positions{};
  if (shape.index) {
    if (indexer_) indexer_->choose(call, normed, s.query_down.data(), cache);
    positions = {s.chosen.data(), s.num_chosen.data(), shape.index->most_chosen()};
    chosen = &positions;
  }

  if (k_up_.transposed) {
    head_linear_transposed(call.pool, s.query_nope.data(), num_tokens, k_up_.matrix,
                           k_up_.heads(num_heads, shape.nope_dim), s.query_latent.data());
  } else {
    head_linear(call.pool, s.query_nope.data(), num_tokens, k_up_.matrix,
                k_up_.heads(num_heads, shape.kv_lora_rank), s.query_latent.data());
  }
  const AttentionQuery query{{s.query_latent.data(), shape.kv_lora_rank, shape.kv_lora_rank},
                             {s.query.data() + shape.nope_dim, shape.query_dim(), shape.rope_dim}};
  const CacheRows rows{cache.planes[0], shape.latent_dim(), 0};
  paged_attention(call.pool, call.kernels, query, rows, rows, call.step.batch,
                  {num_heads, 1, shape.latent_dim(), shape.kv_lora_rank, shape.softmax_scale},
                  s.attended.data(), chosen);
  head_linear(call.pool, s.attended.data(), num_tokens, v_up_.matrix, v_up_.heads(num_heads, shape.v_dim),
              s.values.data());
  linear(call.pool, s.values.data(), num_tokens, output_, out);
}

}  // namespace

std::shared_ptr<const Attention> make_attention(const LatentShape& shape, int64_t hidden,
                                                LayerTensors& tensors) {
  return std::make_shared<LatentAttention>(shape, hidden, tensors);
}

}  // namespace ballast
