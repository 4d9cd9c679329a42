#include <algorithm>
#include <cmath>
#include <string>

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

// Queries, keys and values have a matrix and a convolution each. The decays of a state's rows and the gates
// of the result go through a low rank.
class KimiDeltaAttention final : public Attention {
 public:
  KimiDeltaAttention(const KimiDeltaShape& shape, int64_t hidden, LayerTensors& tensors)
      : shape_(checked(shape, tensors.layer())),
        query_(branch("query", hidden, tensors)),
        key_(branch("key", hidden, tensors)),
        value_(branch("value", hidden, tensors)),
        beta_(tensors.matrix("beta", shape.num_heads, hidden)),
        decay_down_(tensors.matrix_of_width("decay_down", hidden)),
        decay_up_(tensors.matrix("decay_up", shape.width(), decay_down_.rows())),
        rate_(tensors.vector("rate", shape.num_heads)),
        rate_shift_(tensors.vector("rate_shift", shape.width())),
        gate_down_(tensors.matrix_of_width("gate_down", hidden)),
        gate_up_(tensors.matrix("gate_up", shape.width(), gate_down_.rows())),
        head_norm_(tensors.vector("head_norm", shape.head_dim)),
        output_(tensors.matrix("output", hidden, shape.width())) {}

  std::vector<int64_t> plane_widths() const override { return {}; }
  std::vector<int64_t> state_floats() const override {
    const int64_t inputs = conv_shape().state_floats();
    return {delta_shape().state_floats(), inputs, inputs, inputs};
  }
  int64_t rope_dim() const override { return 0; }
  void attend(const AttentionCall& call, const float* normed, const LayerCache& cache,
              float* out) const override;

 private:
  // Queries, keys or values.
  struct Branch {
    Matrix matrix;            // [H * d, D]
    std::vector<float> conv;  // [taps, H * d]
  };

  static KimiDeltaShape checked(const KimiDeltaShape& shape, const std::string& layer) {
    check_heads_and_taps(layer, shape.head_dim, shape.head_dim, shape.conv_taps);
    return shape;
  }
  Branch branch(const std::string& role, int64_t hidden, LayerTensors& tensors) const {
    return {tensors.matrix(role, shape_.width(), hidden),
            by_tap(tensors.vector(role + "_conv", shape_.width() * shape_.conv_taps), shape_.conv_taps)};
  }

  DeltaShape delta_shape() const {
    return {shape_.num_heads, shape_.num_heads, shape_.head_dim, shape_.head_dim, false, true};
  }
  ConvShape conv_shape() const { return {shape_.width(), shape_.conv_taps}; }

  void reserve(AttentionMemory& memory, int64_t num_tokens) const;
  void convolve(const AttentionCall& call, const float* normed, const Branch& branch, float* state,
                float* out) const;
  void through_rank(const AttentionCall& call, const float* normed, const Matrix& down, const Matrix& up,
                    float* out) const;
  void prepare(const AttentionCall& call, float* queries, float* keys) const;
  void decay(const AttentionCall& call, float* decays) const;
  void apply_gates(const AttentionCall& call) const;

  const KimiDeltaShape shape_;
  const Branch query_;
  const Branch key_;
  const Branch value_;
  const Matrix beta_;                    // [H, D]
  const Matrix decay_down_;              // [rank, D]
  const Matrix decay_up_;                // [H * d, rank]
  const std::vector<float> rate_;        // [H], below 0: see lower_bound
  const std::vector<float> rate_shift_;  // [H * d]
  const Matrix gate_down_;               // [rank, D]
  const Matrix gate_up_;                 // [H * d, rank]
  const std::vector<float> head_norm_;   // [d]
  const Matrix output_;                  // [D, H * d]
};

void KimiDeltaAttention::reserve(AttentionMemory& memory, int64_t num_tokens) const {
  const int64_t width = shape_.width();
  grow(memory.projected, num_tokens, std::max(decay_down_.rows(), gate_down_.rows()));
  grow(memory.mixed, num_tokens, width);
  grow(memory.convolved, num_tokens, 3 * width);
  grow(memory.gates, num_tokens, width);
  grow(memory.values, num_tokens, width);
  grow(memory.decays, num_tokens, width);
  grow(memory.betas, num_tokens, shape_.num_heads);
}

void KimiDeltaAttention::convolve(const AttentionCall& call, const float* normed, const Branch& branch,
                                  float* state, float* out) const {
  float* mixed = call.memory.mixed.data();
  linear(call.pool, normed, call.step.num_tokens(), branch.matrix, mixed);
  short_conv(call.pool, call.kernels, conv_shape(), branch.conv.data(), mixed, call.step.states, state, out);
}

void KimiDeltaAttention::through_rank(const AttentionCall& call, const float* normed, const Matrix& down,
                                      const Matrix& up, float* out) const {
  float* projected = call.memory.projected.data();
  linear(call.pool, normed, call.step.num_tokens(), down, projected);
  linear(call.pool, projected, call.step.num_tokens(), up, out);
}

// One token's products → the decays of its states' rows.
void KimiDeltaAttention::decay(const AttentionCall& call, float* decays) const {
  for (int64_t head = 0; head < shape_.num_heads; ++head, decays += shape_.head_dim) {
    const float rate = rate_[static_cast<size_t>(head)];
    const float* shift = rate_shift_.data() + head * shape_.head_dim;
    const int64_t num_rows = shape_.head_dim;
    const float bound = shape_.lower_bound;
    if (call.kernels != nullptr && bound == 0) {
      call.kernels->softplus_decays(decays, shift, rate, num_rows, decays);
    } else if (call.kernels != nullptr) {
      call.kernels->bounded_decays(decays, shift, rate, bound, num_rows, decays);
    } else {
      for (int64_t i = 0; i < num_rows; ++i) {
        const float x = decays[i] + shift[i];
        decays[i] = std::exp(bound == 0 ? rate * softplus(x) : bound * sigmoid(-rate * x));
      }
    }
  }
}

// Norms queries and keys; the products of betas and decays become these.
void KimiDeltaAttention::prepare(const AttentionCall& call, float* queries, float* keys) const {
  AttentionMemory& s = call.memory;
  const int64_t num_heads = shape_.num_heads, width = shape_.width();
  const float query_scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
  for_tokens(call.pool, call.step.num_tokens(), [&](int64_t token) {
    norm_heads(queries + token * width, num_heads, shape_.head_dim, query_scale);
    norm_heads(keys + token * width, num_heads, shape_.head_dim, 1.0f);
    float* betas = s.betas.data() + token * num_heads;
    for (int64_t head = 0; head < num_heads; ++head) betas[head] = sigmoid(betas[head]);
    decay(call, s.decays.data() + token * width);
  });
}

// values = norm of each head's values * sigmoid(gates)
void KimiDeltaAttention::apply_gates(const AttentionCall& call) const {
  AttentionMemory& s = call.memory;
  const int64_t width = shape_.width();
  for_tokens(call.pool, call.step.num_tokens(), [&](int64_t token) {
    float* values = s.values.data() + token * width;
    const float* gates = s.gates.data() + token * width;
    rms_norm(values, shape_.num_heads, shape_.head_dim, head_norm_.data(), call.rms_eps, values);
    if (call.kernels != nullptr) {
      call.kernels->sigmoid_mul(gates, values, width, values);
      return;
    }
    for (int64_t i = 0; i < width; ++i) values[i] *= sigmoid(gates[i]);
  });
}

void KimiDeltaAttention::attend(const AttentionCall& call, const float* normed, const LayerCache& cache,
                                float* out) const {
  AttentionMemory& s = call.memory;
  const int64_t num_tokens = call.step.num_tokens(), width = shape_.width();
  reserve(s, num_tokens);
  float* queries = s.convolved.data();
  float* keys = queries + num_tokens * width;
  float* values = keys + num_tokens * width;
  convolve(call, normed, query_, cache.states[1], queries);
  convolve(call, normed, key_, cache.states[2], keys);
  convolve(call, normed, value_, cache.states[3], values);
  linear(call.pool, normed, num_tokens, beta_, s.betas.data());
  through_rank(call, normed, decay_down_, decay_up_, s.decays.data());
  through_rank(call, normed, gate_down_, gate_up_, s.gates.data());
  prepare(call, queries, keys);
  delta_rule(call.pool, call.kernels, delta_shape(),
             {queries, keys, values, width, s.decays.data(), s.betas.data()}, call.step.states,
             cache.states[0], s.values.data());
  apply_gates(call);
  linear(call.pool, s.values.data(), num_tokens, output_, out);
}

}  // namespace

std::shared_ptr<const Attention> make_attention(const KimiDeltaShape& shape, int64_t hidden,
                                                LayerTensors& tensors) {
  return std::make_shared<KimiDeltaAttention>(shape, hidden, tensors);
}

}  // namespace ballast
