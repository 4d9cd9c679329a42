#include <algorithm>

#include "model/attention.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace ballast {
namespace {

void reserve(AttentionMemory& memory, const GroupedShape& shape, int64_t num_tokens) {
  grow(memory.query, num_tokens, shape.num_heads * shape.head_dim);
  grow(memory.key, num_tokens, shape.num_kv_heads * shape.head_dim);
  grow(memory.value, num_tokens, shape.num_kv_heads * shape.v_dim);
  grow(memory.values, num_tokens, shape.num_heads * shape.v_dim);
}

void add_bias(const std::vector<float>& bias, float* row) {
  for (size_t i = 0; i < bias.size(); ++i) row[i] += bias[i];
}

// Biases, norms of heads, positions: in place, and keys and values into the cache.
void rotate_and_store(const GroupedAttention& layer, const AttentionCall& call, const LayerPlanes& planes) {
  const GroupedShape& shape = layer.shape;
  const int64_t key_width = shape.num_kv_heads * shape.head_dim;
  const int64_t value_width = shape.num_kv_heads * shape.v_dim;
  AttentionMemory& memory = call.memory;
  for_tokens(call.pool, call.step.num_tokens(), [&](int64_t token) {
    const int64_t pairs = call.step.batch.positions[token] * (shape.rope_dim / 2);
    const auto turn = [&](float* heads, int64_t num_heads, const std::vector<float>& norm) {
      if (!norm.empty()) rms_norm(heads, num_heads, shape.head_dim, norm.data(), call.rms_eps, heads);
      for (int64_t head = 0; head < num_heads; ++head) {
        rope_half_split(heads + head * shape.head_dim, 1, 1, shape.head_dim, shape.rope_dim,
                        call.rope.cos + pairs, call.rope.sin + pairs);
      }
    };
    float* query = memory.query.data() + token * shape.num_heads * shape.head_dim;
    float* key = memory.key.data() + token * key_width;
    float* value = memory.value.data() + token * value_width;
    add_bias(layer.query_bias, query);
    add_bias(layer.key_bias, key);
    add_bias(layer.value_bias, value);
    turn(query, shape.num_heads, layer.query_norm);
    turn(key, shape.num_kv_heads, layer.key_norm);
    const int64_t slot = call.step.slots[token];
    std::copy_n(key, key_width, planes[0] + slot * key_width);
    std::copy_n(value, value_width, planes[1] + slot * value_width);
  });
}

}  // namespace

void attend(const GroupedAttention& layer, const AttentionCall& call, const float* normed,
            const LayerPlanes& planes, float* out) {
  const GroupedShape& shape = layer.shape;
  const int64_t num_tokens = call.step.num_tokens();
  AttentionMemory& s = call.memory;
  reserve(s, shape, num_tokens);
  linear(call.pool, normed, num_tokens, layer.query, s.query.data());
  linear(call.pool, normed, num_tokens, layer.key, s.key.data());
  linear(call.pool, normed, num_tokens, layer.value, s.value.data());
  rotate_and_store(layer, call, planes);
  paged_attention(call.pool, call.kernels, {{s.query.data(), shape.head_dim, shape.head_dim}, {}},
                  {planes[0], shape.num_kv_heads * shape.head_dim, shape.head_dim},
                  {planes[1], shape.num_kv_heads * shape.v_dim, shape.v_dim}, call.step.batch,
                  {shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.v_dim, shape.softmax_scale},
                  s.values.data());
  linear(call.pool, s.values.data(), num_tokens, layer.output, out);
}

}  // namespace ballast
