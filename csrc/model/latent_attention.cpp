#include <algorithm>

#include "model/attention.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace ballast {
namespace {

void reserve(AttentionMemory& memory, const LatentAttention& layer, int64_t num_tokens) {
  const LatentShape& shape = layer.shape;
  if (layer.query_down) grow(memory.query_down, num_tokens, layer.query_down->matrix.rows());
  grow(memory.query, num_tokens, shape.num_heads * shape.query_dim());
  grow(memory.query_nope, num_tokens, shape.num_heads * shape.nope_dim);
  grow(memory.query_latent, num_tokens, shape.num_heads * shape.kv_lora_rank);
  grow(memory.latent, num_tokens, shape.latent_dim());
  grow(memory.attended, num_tokens, shape.num_heads * shape.kv_lora_rank);
  grow(memory.values, num_tokens, shape.num_heads * shape.v_dim);
}

void queries(const LatentAttention& layer, const AttentionCall& call, const float* x) {
  const int64_t num_tokens = call.step.num_tokens();
  if (layer.query_down) {
    float* down = call.memory.query_down.data();
    const int64_t rank = layer.query_down->matrix.rows();
    linear(call.pool, x, num_tokens, layer.query_down->matrix, down);
    for_tokens(call.pool, num_tokens, [&](int64_t token) {
      rms_norm(down + token * rank, 1, rank, layer.query_down->norm.data(), call.rms_eps,
               down + token * rank);
    });
    x = down;
  }
  linear(call.pool, x, num_tokens, layer.query_up, call.memory.query.data());
}

// Each token's latent is normed and its key rotated into the cache; its queries are rotated, and their other
// part laid side by side.
void rotate_and_store(const LatentAttention& layer, const AttentionCall& call, float* cache) {
  const LatentShape& shape = layer.shape;
  const int64_t rank = shape.kv_lora_rank;
  const int64_t num_pairs = shape.rope_dim / 2;
  AttentionMemory& memory = call.memory;
  for_tokens(call.pool, call.step.num_tokens(), [&](int64_t token) {
    const float* cos = call.rope.cos + call.step.batch.positions[token] * num_pairs;
    const float* sin = call.rope.sin + call.step.batch.positions[token] * num_pairs;
    const float* latent = memory.latent.data() + token * shape.latent_dim();
    float* row = cache + call.step.slots[token] * shape.latent_dim();
    rms_norm(latent, 1, rank, layer.kv_a_norm.data(), call.rms_eps, row);
    std::copy_n(latent + rank, shape.rope_dim, row + rank);
    rope_interleaved(row + rank, 1, 1, shape.rope_dim, cos, sin);
    for (int64_t head = 0; head < shape.num_heads; ++head) {
      const int64_t index = token * shape.num_heads + head;
      float* query = memory.query.data() + index * shape.query_dim();
      std::copy_n(query, shape.nope_dim, memory.query_nope.data() + index * shape.nope_dim);
      rope_interleaved(query + shape.nope_dim, 1, 1, shape.rope_dim, cos, sin);
    }
  });
}

}  // namespace

// DeepSeek-V2 §2.1.2, appendix C.
void attend(const LatentAttention& layer, const AttentionCall& call, const float* normed,
            const LayerPlanes& planes, float* out) {
  const LatentShape& shape = layer.shape;
  const int64_t num_tokens = call.step.num_tokens();
  const int64_t num_heads = shape.num_heads;
  AttentionMemory& s = call.memory;
  reserve(s, layer, num_tokens);
  queries(layer, call, normed);
  linear(call.pool, normed, num_tokens, layer.kv_a, s.latent.data());
  rotate_and_store(layer, call, planes[0]);
  const ChosenPositions* chosen = nullptr;
  ChosenPositions positions{};
  if (layer.sparse) {
    const IndexerShape& index = layer.sparse->shape;
    if (layer.sparse->indexer) {
      choose(*layer.sparse->indexer, index, shape.rope_dim, call, normed, s.query_down.data(), planes[1]);
    }
    positions = {s.chosen.data(), s.num_chosen.data(), index.top_k};
    chosen = &positions;
  }

  if (layer.k_up.transposed) {
    head_linear_transposed(call.pool, s.query_nope.data(), num_tokens, layer.k_up.matrix,
                           layer.k_up.heads(num_heads, shape.nope_dim), s.query_latent.data());
  } else {
    head_linear(call.pool, s.query_nope.data(), num_tokens, layer.k_up.matrix,
                layer.k_up.heads(num_heads, shape.kv_lora_rank), s.query_latent.data());
  }
  const AttentionQuery query{{s.query_latent.data(), shape.kv_lora_rank, shape.kv_lora_rank},
                             {s.query.data() + shape.nope_dim, shape.query_dim(), shape.rope_dim}};
  const CacheRows rows{planes[0], shape.latent_dim(), 0};
  paged_attention(call.pool, call.kernels, query, rows, rows, call.step.batch,
                  {num_heads, 1, shape.latent_dim(), shape.kv_lora_rank, shape.softmax_scale},
                  s.attended.data(), chosen);
  head_linear(call.pool, s.attended.data(), num_tokens, layer.v_up.matrix,
              layer.v_up.heads(num_heads, shape.v_dim), s.values.data());
  linear(call.pool, s.values.data(), num_tokens, layer.output, out);
}

}  // namespace ballast
