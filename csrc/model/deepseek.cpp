#include "model/deepseek.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/index_range.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace ballast {

DeepseekModel::DeepseekModel(ThreadPool& pool, const Kernels* kernels, const DeepseekShape& shape,
                             ModelWeights weights, const RopeTable& rope, const KvCache& cache)
    : pool_(pool),
      kernels_(kernels),
      shape_(shape),
      weights_(std::move(weights)),
      rope_(rope),
      cache_(cache),
      routed_(pool, shape.routing) {
  weights_.check(shape_);
  const auto has_experts = [](const LayerWeights& layer) { return layer.routed.has_value(); };
  if (std::any_of(weights_.layers.begin(), weights_.layers.end(), has_experts)) shape_.routing.check();
  if (cache_.layers.size() != weights_.layers.size()) {
    throw std::invalid_argument("the cache has " + std::to_string(cache_.layers.size()) +
                                " layers; expected " + std::to_string(weights_.layers.size()));
  }
}

void DeepseekModel::forward(const Step& step, float* logits, const std::function<void()>& layer_done) {
  check(step);
  if (step.num_tokens() == 0) return;
  int64_t query_rank = 0;
  for (const LayerWeights& layer : weights_.layers) {
    if (layer.attention.query_down)
      query_rank = std::max(query_rank, layer.attention.query_down->matrix.rows());
  }
  memory_.reserve(step.num_tokens(), shape_, query_rank);

  embed(step);
  Outputs pending;  // what is still to be added to the residual stream
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    const LayerWeights& layer = weights_.layers[i];
    add_and_norm(pending, layer.attention.norm, step.num_tokens());
    attention(layer.attention, cache_.layers[i], step);
    add_and_norm({memory_.block_out.data()}, layer.ffn_norm, step.num_tokens());
    pending = feed_forward(layer, step.num_tokens());
    layer_done();
  }
  output(pending, step, logits);
}

void DeepseekModel::embed(const Step& step) {
  for_tokens(step.num_tokens(), [&](int64_t token) {
    weights_.embedding.dequantize_row(step.token_ids[token], memory_.stream.data() + token * shape_.hidden);
  });
}

// Latent attention in its absorbed form (DeepSeek-V2 §2.1.2, appendix C): normed → block_out.
void DeepseekModel::attention(const AttentionWeights& weights, float* cache, const Step& step) {
  const int64_t num_tokens = step.num_tokens();
  const int64_t num_heads = shape_.num_heads;
  StepMemory& s = memory_;
  queries(weights, num_tokens);
  linear(pool_, s.normed.data(), num_tokens, weights.kv_a, s.latent.data());
  rotate_and_store(weights, cache, step);

  if (weights.k_up.transposed) {
    head_linear_transposed(pool_, s.query_nope.data(), num_tokens, weights.k_up.matrix,
                           weights.k_up.heads(num_heads, shape_.nope_dim), s.query_latent.data());
  } else {
    head_linear(pool_, s.query_nope.data(), num_tokens, weights.k_up.matrix,
                weights.k_up.heads(num_heads, shape_.kv_lora_rank), s.query_latent.data());
  }
  const LatentQuery query{s.query_latent.data(), shape_.kv_lora_rank, s.query.data() + shape_.nope_dim,
                          shape_.query_dim()};
  mla_attention(pool_, kernels_, query, cache, step.batch,
                {num_heads, shape_.latent_dim(), shape_.kv_lora_rank, shape_.softmax_scale},
                s.attended.data());
  head_linear(pool_, s.attended.data(), num_tokens, weights.v_up.matrix,
              weights.v_up.heads(num_heads, shape_.v_dim), s.values.data());
  linear(pool_, s.values.data(), num_tokens, weights.output, s.block_out.data());
}

void DeepseekModel::queries(const AttentionWeights& weights, int64_t num_tokens) {
  const float* x = memory_.normed.data();
  if (weights.query_down) {
    float* down = memory_.query_down.data();
    const int64_t rank = weights.query_down->matrix.rows();
    linear(pool_, x, num_tokens, weights.query_down->matrix, down);
    for_tokens(num_tokens, [&](int64_t token) {
      rms_norm(down + token * rank, 1, rank, weights.query_down->norm.data(), shape_.rms_eps,
               down + token * rank);
    });
    x = down;
  }
  linear(pool_, x, num_tokens, weights.query_up, memory_.query.data());
}

// Each token's latent is normed and its key rotated into the cache; its queries are rotated, and their other
// part laid side by side.
void DeepseekModel::rotate_and_store(const AttentionWeights& weights, float* cache, const Step& step) {
  const int64_t rank = shape_.kv_lora_rank;
  const int64_t num_pairs = shape_.rope_dim / 2;
  for_tokens(step.num_tokens(), [&](int64_t token) {
    const float* cos = rope_.cos + step.batch.positions[token] * num_pairs;
    const float* sin = rope_.sin + step.batch.positions[token] * num_pairs;
    const float* latent = memory_.latent.data() + token * shape_.latent_dim();
    float* row = cache + step.slots[token] * shape_.latent_dim();
    rms_norm(latent, 1, rank, weights.kv_a_norm.data(), shape_.rms_eps, row);
    std::copy_n(latent + rank, shape_.rope_dim, row + rank);
    rope_interleaved(row + rank, 1, 1, shape_.rope_dim, cos, sin);
    for (int64_t head = 0; head < shape_.num_heads; ++head) {
      const int64_t index = token * shape_.num_heads + head;
      float* query = memory_.query.data() + index * shape_.query_dim();
      std::copy_n(query, shape_.nope_dim, memory_.query_nope.data() + index * shape_.nope_dim);
      rope_interleaved(query + shape_.nope_dim, 1, 1, shape_.rope_dim, cos, sin);
    }
  });
}

// normed → what the layer adds to the residual stream.
DeepseekModel::Outputs DeepseekModel::feed_forward(const LayerWeights& weights, int64_t num_tokens) {
  StepMemory& s = memory_;
  std::vector<Experts::Call> calls;
  if (weights.routed) calls.push_back(choose(*weights.routed, num_tokens));
  if (weights.every_token)
    calls.push_back({&*weights.every_token, s.zeros.data(), s.ones.data(), 1, s.block_out.data()});
  const std::vector<int64_t> num_read = Experts::forward_all(pool_, s.normed.data(), num_tokens, calls);
  if (weights.routed) routed_.count_read(weights.routed->experts, num_read[0]);
  Outputs outputs;
  for (const Experts::Call& call : calls) outputs.push_back(call.out);
  return outputs;
}

Experts::Call DeepseekModel::choose(const RoutedWeights& weights, int64_t num_tokens) {
  StepMemory& s = memory_;
  linear(pool_, s.normed.data(), num_tokens, weights.router, s.router_logits.data());
  return routed_.choose(weights.experts, weights.bias.empty() ? nullptr : weights.bias.data(),
                        s.router_logits.data(), num_tokens, s.routed_out.data());
}

void DeepseekModel::output(const Outputs& pending, const Step& step, float* logits) {
  const int64_t hidden = shape_.hidden;
  for_tokens(step.num_sampled, [&](int64_t i) {
    float* row = memory_.stream.data() + step.sampled[i] * hidden;
    float* normed = memory_.normed.data() + i * hidden;
    std::copy_n(row, hidden, normed);
    for (const float* added : pending) {
      for (int64_t k = 0; k < hidden; ++k) normed[k] += added[step.sampled[i] * hidden + k];
    }
    rms_norm(normed, 1, hidden, weights_.output_norm.data(), shape_.rms_eps, normed);
  });
  linear(pool_, memory_.normed.data(), step.num_sampled, weights_.output, logits);
}

// stream += added, in order; normed = norm(stream).
void DeepseekModel::add_and_norm(const Outputs& added, const std::vector<float>& norm, int64_t num_tokens) {
  const int64_t hidden = shape_.hidden;
  for_tokens(num_tokens, [&](int64_t token) {
    float* row = memory_.stream.data() + token * hidden;
    for (const float* output : added) {
      for (int64_t i = 0; i < hidden; ++i) row[i] += output[token * hidden + i];
    }
    rms_norm(row, 1, hidden, norm.data(), shape_.rms_eps, memory_.normed.data() + token * hidden);
  });
}

// A few tokens are not worth waking a thread: they make one task, which the caller runs itself.
template <class PerToken>
void DeepseekModel::for_tokens(int64_t num_tokens, const PerToken& per_token) const {
  constexpr int64_t kTaskTokens = 4;
  const Chunks chunks(num_tokens, kTaskTokens);
  pool_.parallel_for(chunks.count(), [&](int64_t task) {
    const IndexRange tokens = chunks[task];
    for (int64_t token = tokens.begin; token < tokens.end; ++token) per_token(token);
  });
}

void DeepseekModel::check(const Step& step) const {
  const auto within = [](const char* name, int64_t index, int64_t value, int64_t end) {
    if (value >= 0 && value < end) return;
    throw std::out_of_range(std::string(name) + "[" + std::to_string(index) + "] is " +
                            std::to_string(value) + "; expected 0 to " + std::to_string(end - 1));
  };
  step.batch.check();
  if (step.num_sampled > step.num_tokens()) {
    throw std::invalid_argument("sampled has " + std::to_string(step.num_sampled) +
                                " entries; expected at most one a token, " +
                                std::to_string(step.num_tokens()));
  }
  for (int64_t token = 0; token < step.num_tokens(); ++token) {
    within("token_ids", token, step.token_ids[token], weights_.embedding.rows());
    within("slots", token, step.slots[token], cache_.num_slots);
    within("positions", token, step.batch.positions[token], rope_.num_positions);
  }
  for (int64_t i = 0; i < step.num_sampled; ++i) within("sampled", i, step.sampled[i], step.num_tokens());
}

void DeepseekModel::StepMemory::reserve(int64_t num_tokens, const DeepseekShape& shape, int64_t query_rank) {
  const auto grow = [num_tokens](auto& buffer, int64_t width) {
    const size_t size = static_cast<size_t>(num_tokens * width);
    if (buffer.size() < size) buffer.resize(size);
  };
  grow(stream, shape.hidden);
  grow(normed, shape.hidden);
  grow(query_down, query_rank);
  grow(query, shape.num_heads * shape.query_dim());
  grow(query_nope, shape.num_heads * shape.nope_dim);
  grow(query_latent, shape.num_heads * shape.kv_lora_rank);
  grow(latent, shape.latent_dim());
  grow(attended, shape.num_heads * shape.kv_lora_rank);
  grow(values, shape.num_heads * shape.v_dim);
  grow(block_out, shape.hidden);
  grow(routed_out, shape.hidden);
  grow(router_logits, shape.routing.num_experts);
  grow(zeros, 1);
  if (ones.size() < zeros.size()) ones.resize(zeros.size(), 1.0f);
}

}  // namespace ballast
