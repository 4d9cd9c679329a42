#include "model/transformer.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/ids.h"
#include "model/shared/fits.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/pointwise.h"
#include "ops/vector.h"

namespace ballast {

namespace {

// Of layers in which positions do not count.
constexpr RopeTable kNoRope{nullptr, nullptr, 0, 0};

const HyperConnection* connection(const std::optional<HyperConnection>& of_block) {
  return of_block ? &*of_block : nullptr;
}

void within(const char* name, int64_t index, int64_t value, int64_t end) {
  if (value >= 0 && value < end) return;
  throw std::out_of_range(std::string(name) + "[" + std::to_string(index) + "] is " + std::to_string(value) +
                          "; expected 0 to " + std::to_string(end - 1));
}

}  // namespace

Transformer::Transformer(ThreadPool& pool, const Kernels* kernels, const ModelShape& shape,
                         ModelWeights weights, const std::vector<RopeTable>& ropes, const KvCache& cache)
    : pool_(pool),
      kernels_(kernels),
      shape_(shape),
      weights_(std::move(weights)),
      ropes_(ropes),
      cache_(cache),
      stream_(pool, shape.hidden, shape.rms_eps, shape.stream),
      routed_(pool, shape.routing) {
  if (shape.stream.rank > 0)
    gated_.emplace(pool, kernels, shape.hidden, shape.rms_eps, shape.stream.num_rows);
  const auto has_experts = [](const LayerWeights& layer) { return layer.routed.has_value(); };
  if (std::any_of(weights_.layers.begin(), weights_.layers.end(), has_experts)) shape_.routing.check();
  check_cache();
  check_ropes();
}

void Transformer::check_ropes() const {
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    const LayerWeights& layer = weights_.layers[i];
    const std::string name = "layers[" + std::to_string(i) + "]";
    const int64_t dim = layer.attention->rope_dim();
    if (dim == 0) continue;
    require(layer.rope < ropes_.size(), name + " has rotation " + std::to_string(layer.rope) +
                                            "; expected one of " + std::to_string(ropes_.size()));
    require(dim == ropes_[layer.rope].dim, name + " rotates " + std::to_string(dim) + " entries; expected " +
                                               std::to_string(ropes_[layer.rope].dim));
  }
}

void Transformer::check_cache() const {
  if (cache_.layers.size() != weights_.layers.size()) {
    throw std::invalid_argument("the cache has " + std::to_string(cache_.layers.size()) +
                                " layers; expected " + std::to_string(weights_.layers.size()));
  }
  for (size_t i = 0; i < cache_.layers.size(); ++i) {
    const auto check = [&](size_t found, size_t expected, const char* what) {
      require(found == expected, "the cache has " + std::to_string(found) + " " + what + " in layer " +
                                     std::to_string(i) + "; expected " + std::to_string(expected));
    };
    const Attention& attention = *weights_.layers[i].attention;
    check(cache_.layers[i].planes.size(), attention.plane_widths().size(), "planes");
    check(cache_.layers[i].states.size(), weights_.layers[i].state_floats().size(), "states");
  }
}

void Transformer::forward(const Step& step, float* logits, const std::function<void()>& layer_done) {
  check(step);
  if (step.num_tokens() == 0) return;
  memory_.reserve(step.num_tokens(), shape_);

  embed(step);
  Outputs pending;  // what is still to be added to the residual stream
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    const LayerWeights& layer = weights_.layers[i];
    const RopeTable& rope = layer.attention->rope_dim() == 0 ? kNoRope : ropes_[layer.rope];
    const AttentionCall call{pool_, kernels_, rope, shape_.rms_eps, step, attention_memory_};
    if (layer.ngram) {
      gated_->add(pending);
      pending.clear();
      layer.ngram->add(call, cache_.layers[i].states.back(), gated_->rows());
    }
    next_block(layer.attention_input, pending);
    layer.attention->attend(call, memory_.normed.data(), cache_.layers[i], memory_.block_out.data());
    next_block(layer.ffn_input, {memory_.block_out.data()});
    pending = feed_forward(layer, step);
    layer_done();
  }
  output(pending, step, logits);
}

// Adds what the last block has computed, and writes the input of the next one.
void Transformer::next_block(const BlockInput& input, const Outputs& added) {
  float* normed = memory_.normed.data();
  if (gated_) {
    gated_->add(added);
    gated_->read(*input.gates, normed);
  } else {
    stream_.next_block(added, connection(input.connection), input.norm, normed);
  }
}

void Transformer::embed(const Step& step) {
  const auto write = [&](auto& stream) {
    stream.begin(step.num_tokens());
    for_tokens(pool_, step.num_tokens(), [&](int64_t token) {
      weights_.embedding.dequantize_row(step.token_ids[token], stream.first_row(token));
      stream.copy_row(token);
    });
  };
  if (gated_) {
    write(*gated_);
  } else {
    write(stream_);
  }
}

// normed → what the layer adds to the residual stream.
Transformer::Outputs Transformer::feed_forward(const LayerWeights& weights, const Step& step) {
  StepMemory& s = memory_;
  const int64_t num_tokens = step.num_tokens();
  std::vector<Experts::Call> calls;
  if (weights.routed) calls.push_back(choose(*weights.routed, step));
  if (weights.mlp) calls.push_back(every_token(weights, num_tokens));
  const std::vector<int64_t> num_read = Experts::forward_all(pool_, s.normed.data(), num_tokens, calls);
  if (weights.routed) routed_.count_read(weights.routed->experts, num_read[0]);
  Outputs outputs;
  for (const Experts::Call& call : calls) outputs.push_back(call.out);
  return outputs;
}

// The expert of all tokens, with its share of each.
Experts::Call Transformer::every_token(const LayerWeights& weights, int64_t num_tokens) {
  StepMemory& s = memory_;
  const int64_t hidden = shape_.hidden;
  for_tokens(pool_, weights.mlp_gate.empty() ? 0 : num_tokens, [&](int64_t token) {
    const float product = dot(weights.mlp_gate.data(), s.normed.data() + token * hidden, hidden);
    s.shares[static_cast<size_t>(token)] = sigmoid(product);
  });
  if (weights.mlp_gate.empty()) std::fill_n(s.shares.begin(), num_tokens, 1.0f);
  return {&*weights.mlp, s.zeros.data(), s.shares.data(), 1, s.block_out.data()};
}

Experts::Call Transformer::choose(const RoutedWeights& weights, const Step& step) {
  StepMemory& s = memory_;
  const int64_t num_tokens = step.num_tokens();
  linear(pool_, s.normed.data(), num_tokens, weights.router, s.router_logits.data());
  if (!weights.logit_bias.empty()) {
    for_tokens(pool_, num_tokens, [&](int64_t token) {
      float* row = s.router_logits.data() + token * shape_.routing.num_experts;
      for (size_t e = 0; e < weights.logit_bias.size(); ++e) row[e] += weights.logit_bias[e];
    });
  }
  if (!weights.table.empty()) {
    return routed_.look_up(weights.experts, weights.table.data(), step.token_ids, s.router_logits.data(),
                           num_tokens, s.routed_out.data());
  }
  return routed_.choose(weights.experts, weights.bias.empty() ? nullptr : weights.bias.data(),
                        s.router_logits.data(), num_tokens, s.routed_out.data());
}

void Transformer::output(const Outputs& pending, const Step& step, float* logits) {
  const int64_t hidden = shape_.hidden;
  if (gated_) {
    gated_->add(pending);
    gated_->finish(*weights_.output_gates, step.sampled, step.num_sampled, memory_.normed.data());
  }
  for_tokens(pool_, gated_ ? 0 : step.num_sampled, [&](int64_t i) {
    float* normed = memory_.normed.data() + i * hidden;
    stream_.finish(pending, step.sampled[i], connection(weights_.stream_end), normed);
    rms_norm(normed, 1, hidden, weights_.output_norm.data(), shape_.rms_eps, normed);
  });
  linear(pool_, memory_.normed.data(), step.num_sampled, weights_.output, logits);
}

void Transformer::check_states(const StateRows& states) const {
  if (states.in == nullptr) return;
  for (int64_t row = 0; row < states.num_rows; ++row) {
    within("states_in", row, states.in[row], cache_.num_state_slots);
    within("states_out", row, states.out[row], cache_.num_state_slots);
    const int32_t first = states.save_indptr[row], last = states.save_indptr[row + 1];
    for (int32_t save = first, after = 1; save < last; ++save) {
      const int32_t end = states.save_ends[save];
      within("save_slots", save, states.save_slots[save], cache_.num_state_slots);
      within("save_ends", save, end < after ? -1 : end, states.num_tokens(row) + 1);
      after = end + 1;
    }
  }
}

void Transformer::check_earlier(const Step& step) const {
  if (step.earlier_ids == nullptr) return;
  for (int64_t i = 0; i < step.batch.num_requests * kEarlierTokens; ++i) {
    if (step.earlier_ids[i] == kNoToken) continue;
    within("earlier_ids", i, step.earlier_ids[i], weights_.embedding.rows());
  }
}

void Transformer::check(const Step& step) const {
  step.batch.check();
  step.window_batch.check();
  if (step.num_sampled > step.num_tokens()) {
    throw std::invalid_argument("sampled has " + std::to_string(step.num_sampled) +
                                " entries; expected at most one a token, " +
                                std::to_string(step.num_tokens()));
  }
  for (int64_t token = 0; token < step.num_tokens(); ++token) {
    within("token_ids", token, step.token_ids[token], weights_.embedding.rows());
    within("slots", token, step.slots[token], cache_.num_slots);
    within("window_slots", token, step.window_slots[token], cache_.num_window_slots);
    for (const RopeTable& rope : ropes_)
      within("positions", token, step.batch.positions[token], rope.num_positions);
  }
  check_states(step.states);
  check_earlier(step);
  for (int64_t i = 0; i < step.num_sampled; ++i) within("sampled", i, step.sampled[i], step.num_tokens());
}

void Transformer::StepMemory::reserve(int64_t num_tokens, const ModelShape& shape) {
  grow(normed, num_tokens, shape.hidden);
  grow(block_out, num_tokens, shape.hidden);
  grow(routed_out, num_tokens, shape.hidden);
  grow(router_logits, num_tokens, shape.routing.num_experts);
  grow(zeros, num_tokens, 1);
  grow(shares, num_tokens, 1);
}

}  // namespace ballast
