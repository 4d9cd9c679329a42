#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "model/attention/attention.h"
#include "model/shared/fits.h"
#include "model/shared/recurrent.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/pointwise.h"
#include "ops/recurrent/delta_rule.h"
#include "ops/recurrent/short_conv.h"

namespace ballast {
namespace {

// Files have the products of queries, keys, values and gates in one of two layouts: `mixed` (all queries, all
// keys, all values) and `output_gate`, or `grouped`, where each key head's query, key, values and gates
// follow each other. The rows of `beta_alpha` are grouped by key head in both: its betas, then its alphas.
class GatedDeltaNet final : public Attention {
 public:
  GatedDeltaNet(const DeltaNetShape& shape, int64_t hidden, LayerTensors& tensors)
      : shape_(checked(shape, tensors.layer())),
        conv_(by_tap(tensors.vector("conv", shape.channels() * shape.conv_taps), shape.conv_taps)),
        rate_(tensors.vector("rate", shape.num_heads)),
        rate_shift_(tensors.vector("rate_shift", shape.num_heads)),
        head_norm_(tensors.vector("head_norm", shape.v_dim)),
        output_(tensors.matrix("output", hidden, shape.value_width())) {
    if (tensors.has("beta_alpha")) {
      beta_alpha_ = tensors.matrix("beta_alpha", 2 * shape.num_heads, hidden);
    } else {
      beta_ = tensors.matrix("beta", shape.num_heads, hidden);
      alpha_ = tensors.matrix("alpha", shape.num_heads, hidden);
    }
    if (tensors.has("grouped")) {
      grouped_ = tensors.matrix("grouped", shape.channels() + shape.value_width(), hidden);
    } else {
      mixed_ = tensors.matrix("mixed", shape.channels(), hidden);
      gate_ = tensors.matrix("output_gate", shape.value_width(), hidden);
    }
  }

  std::vector<int64_t> plane_widths() const override { return {}; }
  std::vector<int64_t> state_floats() const override {
    return {delta_shape().state_floats(), conv_shape().state_floats()};
  }
  int64_t rope_dim() const override { return 0; }
  void attend(const AttentionCall& call, const float* normed, const LayerCache& cache,
              float* out) const override;

 private:
  static DeltaNetShape checked(const DeltaNetShape& shape, const std::string& layer) {
    require(shape.num_key_heads > 0 && shape.num_heads % shape.num_key_heads == 0,
            layer + " has " + std::to_string(shape.num_heads) + " heads of values for " +
                std::to_string(shape.num_key_heads) + " of keys; expected equal groups");
    check_heads_and_taps(layer, shape.key_dim, shape.v_dim, shape.conv_taps);
    return shape;
  }

  DeltaShape delta_shape() const {
    return {shape_.num_heads, shape_.num_key_heads, shape_.key_dim, shape_.v_dim, shape_.heads_alternate};
  }
  ConvShape conv_shape() const { return {shape_.channels(), shape_.conv_taps}; }

  void project(const AttentionCall& call, const float* normed) const;
  void split_groups(const float* grouped, float* mixed, float* gates) const;
  void split_gates(const float* grouped, float* betas, float* alphas) const;
  void prepare(const AttentionCall& call, const float* normed) const;
  void apply_gates(const AttentionCall& call) const;

  const DeltaNetShape shape_;
  std::optional<Matrix> mixed_;          // [channels, D]
  std::optional<Matrix> gate_;           // [H * v, D]
  std::optional<Matrix> grouped_;        // [channels + H * v, D]
  std::optional<Matrix> beta_alpha_;     // [2 H, D]
  std::optional<Matrix> beta_;           // [H, D]
  std::optional<Matrix> alpha_;          // [H, D]
  const std::vector<float> conv_;        // [taps, channels]
  const std::vector<float> rate_;        // [H], below 0: the logarithm of a state's decay for softplus = 1
  const std::vector<float> rate_shift_;  // [H]
  const std::vector<float> head_norm_;   // [v]
  const Matrix output_;                  // [D, H * v]
};

void reserve(AttentionMemory& memory, const DeltaNetShape& shape, int64_t num_tokens) {
  grow(memory.projected, num_tokens, shape.channels() + shape.value_width());
  grow(memory.mixed, num_tokens, shape.channels());
  grow(memory.convolved, num_tokens, shape.channels());
  grow(memory.gates, num_tokens, shape.value_width());
  grow(memory.values, num_tokens, shape.value_width());
  grow(memory.decays, num_tokens, shape.num_heads);
  grow(memory.betas, num_tokens, shape.num_heads);
}

// One token's row.
void GatedDeltaNet::split_groups(const float* grouped, float* mixed, float* gates) const {
  const int64_t key_dim = shape_.key_dim;
  const int64_t values = shape_.value_width() / shape_.num_key_heads;
  for (int64_t head = 0; head < shape_.num_key_heads; ++head) {
    const auto take = [&](int64_t count, float* to) {
      std::copy_n(grouped, count, to + head * count);
      grouped += count;
    };
    take(key_dim, mixed);
    take(key_dim, mixed + shape_.key_width());
    take(values, mixed + 2 * shape_.key_width());
    take(values, gates);
  }
}

// normed → mixed, gates
void GatedDeltaNet::project(const AttentionCall& call, const float* normed) const {
  AttentionMemory& s = call.memory;
  const int64_t num_tokens = call.step.num_tokens();
  if (!grouped_) {
    linear(call.pool, normed, num_tokens, *mixed_, s.mixed.data());
    linear(call.pool, normed, num_tokens, *gate_, s.gates.data());
    return;
  }
  linear(call.pool, normed, num_tokens, *grouped_, s.projected.data());
  for_tokens(call.pool, num_tokens, [&](int64_t token) {
    split_groups(s.projected.data() + token * grouped_->rows(), s.mixed.data() + token * shape_.channels(),
                 s.gates.data() + token * shape_.value_width());
  });
}

// One token's betas and alphas apart.
void GatedDeltaNet::split_gates(const float* grouped, float* betas, float* alphas) const {
  const int64_t per_key_head = shape_.num_heads / shape_.num_key_heads;
  for (int64_t head = 0; head < shape_.num_key_heads; ++head) {
    betas = std::copy_n(grouped, per_key_head, betas);
    alphas = std::copy_n(grouped + per_key_head, per_key_head, alphas);
    grouped += 2 * per_key_head;
  }
}

// normed, convolved → normed queries and keys, decays, betas
void GatedDeltaNet::prepare(const AttentionCall& call, const float* normed) const {
  AttentionMemory& s = call.memory;
  const int64_t num_tokens = call.step.num_tokens(), num_heads = shape_.num_heads;
  const float query_scale = 1.0f / std::sqrt(static_cast<float>(shape_.key_dim));
  if (beta_alpha_) {
    linear(call.pool, normed, num_tokens, *beta_alpha_, s.projected.data());
  } else {
    linear(call.pool, normed, num_tokens, *beta_, s.betas.data());
    linear(call.pool, normed, num_tokens, *alpha_, s.decays.data());
  }
  for_tokens(call.pool, num_tokens, [&](int64_t token) {
    float* queries = s.convolved.data() + token * shape_.channels();
    norm_heads(queries, shape_.num_key_heads, shape_.key_dim, query_scale);
    norm_heads(queries + shape_.key_width(), shape_.num_key_heads, shape_.key_dim, 1.0f);
    float* betas = s.betas.data() + token * num_heads;
    float* decays = s.decays.data() + token * num_heads;
    if (beta_alpha_) split_gates(s.projected.data() + token * 2 * num_heads, betas, decays);
    for (int64_t head = 0; head < num_heads; ++head) {
      const auto index = static_cast<size_t>(head);
      betas[head] = sigmoid(betas[head]);
      decays[head] = std::exp(rate_[index] * softplus(decays[head] + rate_shift_[index]));
    }
  });
}

// values = norm of each head's values * the function of gates
void GatedDeltaNet::apply_gates(const AttentionCall& call) const {
  AttentionMemory& s = call.memory;
  for_tokens(call.pool, call.step.num_tokens(), [&](int64_t token) {
    float* values = s.values.data() + token * shape_.value_width();
    const float* gates = s.gates.data() + token * shape_.value_width();
    rms_norm(values, shape_.num_heads, shape_.v_dim, head_norm_.data(), call.rms_eps, values);
    const int64_t width = shape_.value_width();
    if (call.kernels != nullptr) {
      (shape_.sigmoid_gates ? call.kernels->sigmoid_mul : call.kernels->silu_mul)(gates, values, width,
                                                                                  values);
    } else if (shape_.sigmoid_gates) {
      for (int64_t i = 0; i < width; ++i) values[i] *= sigmoid(gates[i]);
    } else {
      silu_mul(gates, values, width, values);
    }
  });
}

void GatedDeltaNet::attend(const AttentionCall& call, const float* normed, const LayerCache& cache,
                           float* out) const {
  AttentionMemory& s = call.memory;
  const int64_t num_tokens = call.step.num_tokens();
  reserve(s, shape_, num_tokens);
  project(call, normed);
  short_conv(call.pool, call.kernels, conv_shape(), conv_.data(), s.mixed.data(), call.step.states,
             cache.states[1], s.convolved.data());
  prepare(call, normed);
  const float* convolved = s.convolved.data();
  delta_rule(call.pool, call.kernels, delta_shape(),
             {convolved, convolved + shape_.key_width(), convolved + 2 * shape_.key_width(),
              shape_.channels(), s.decays.data(), s.betas.data()},
             call.step.states, cache.states[0], s.values.data());
  apply_gates(call);
  linear(call.pool, s.values.data(), num_tokens, output_, out);
}

}  // namespace

std::shared_ptr<const Attention> make_attention(const DeltaNetShape& shape, int64_t hidden,
                                                LayerTensors& tensors) {
  return std::make_shared<GatedDeltaNet>(shape, hidden, tensors);
}

}  // namespace ballast
