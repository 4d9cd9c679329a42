#include <algorithm>
#include <optional>

#include "model/attention/attention.h"
#include "model/attention/block_indexer.h"
#include "model/shared/fits.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/pointwise.h"
#include "ops/rope.h"

namespace ballast {
namespace {

// Grouped-query attention (arXiv 2305.13245): the cache holds rotated keys, and values, of num_kv_heads
// heads. Pairs of the rotation are rope_dim / 2 apart. Biases, norms, sinks and the gate are empty where a
// model has none. Values are scaled before they are cached.
class GroupedAttention final : public Attention {
 public:
  GroupedAttention(const GroupedShape& shape, int64_t hidden, LayerTensors& tensors)
      : shape_(checked(shape, tensors.layer())),
        query_(tensors.matrix("query", query_rows(), hidden)),
        key_(tensors.matrix("key", key_width(), hidden)),
        value_(tensors.matrix("value", value_width(), hidden)),
        query_bias_(tensors.optional_vector("query_bias", query_width())),
        key_bias_(tensors.optional_vector("key_bias", key_width())),
        value_bias_(tensors.optional_vector("value_bias", value_width())),
        query_norm_(tensors.optional_vector("query_norm", norm_width(shape.num_heads))),
        key_norm_(tensors.optional_vector("key_norm", norm_width(shape.num_kv_heads))),
        sinks_(tensors.optional_vector("sinks", shape.num_heads)),
        output_(tensors.matrix("output", hidden, shape.num_heads * shape.v_dim)),
        output_bias_(tensors.optional_vector("output_bias", hidden)) {
    if (tensors.has("head_gate") && !shape.gates_queries)
      gate_ = tensors.matrix("head_gate", num_gates(), hidden);
    if (shape.index) indexer_.emplace(*shape.index, shape.rope_dim, hidden, tensors);
  }

  std::vector<int64_t> plane_widths() const override {
    std::vector<int64_t> widths{key_width(), value_width()};
    if (shape_.index) widths.push_back(shape_.index->key_width / shape_.index->pool);
    return widths;
  }
  std::vector<int64_t> state_floats() const override {
    if (!shape_.index) return {};
    return {PooledKeys::state_floats(*shape_.index)};
  }
  const IndexerShape* index() const override { return shape_.index ? &*shape_.index : nullptr; }
  bool has_indexer() const override { return indexer_.has_value(); }
  int64_t rope_dim() const override { return shape_.rope_dim; }
  bool has_window() const override { return shape_.window != 0; }
  void attend(const AttentionCall& call, const float* normed, const LayerCache& cache,
              float* out) const override;

 private:
  static GroupedShape checked(const GroupedShape& shape, const std::string& layer) {
    require(shape.num_kv_heads > 0 && shape.num_heads % shape.num_kv_heads == 0,
            layer + " has " + std::to_string(shape.num_heads) + " heads for " +
                std::to_string(shape.num_kv_heads) + " of the cache; expected equal groups");
    require(shape.rope_dim <= shape.head_dim, layer + " rotates " + std::to_string(shape.rope_dim) +
                                                  " entries of heads of " + std::to_string(shape.head_dim));
    require(!shape.gates_queries || shape.v_dim == shape.head_dim,
            layer + " has gates of " + std::to_string(shape.head_dim) + " numbers for values of " +
                std::to_string(shape.v_dim) + "; expected as many");
    require(shape.window >= 0, layer + " has a window of " + std::to_string(shape.window) +
                                   " positions; expected 1 or more, or 0 for none");
    require(!shape.index || shape.window == 0, layer + " has an indexer and a window; expected one of them");
    return shape;
  }

  int64_t query_width() const { return shape_.num_heads * shape_.head_dim; }
  int64_t query_rows() const { return shape_.gates_queries ? 2 * query_width() : query_width(); }
  int64_t key_width() const { return shape_.num_kv_heads * shape_.head_dim; }
  int64_t value_width() const { return shape_.num_kv_heads * shape_.v_dim; }
  bool gates_entries() const { return shape_.gates_entries || shape_.gates_queries; }
  int64_t num_gates() const { return shape_.num_heads * (gates_entries() ? shape_.v_dim : 1); }
  // What one norm spans.
  int64_t norm_width(int64_t num_heads) const {
    return shape_.norms_all_heads ? num_heads * shape_.head_dim : shape_.head_dim;
  }

  void rotate_and_store(const AttentionCall& call, const LayerPlanes& planes) const;
  void project_queries(const AttentionCall& call, const float* normed) const;
  void apply_gates(const AttentionCall& call, const float* normed) const;

  const GroupedShape shape_;
  const Matrix query_;  // [H * head_dim, D], or [2 H * head_dim, D] with gates
  const Matrix key_;    // [num_kv_heads * head_dim, D]
  const Matrix value_;  // [num_kv_heads * v, D]
  const std::vector<float> query_bias_;
  const std::vector<float> key_bias_;
  const std::vector<float> value_bias_;
  const std::vector<float> query_norm_;  // [head_dim] of each head or [H * head_dim], before the rotation
  const std::vector<float> key_norm_;
  const std::vector<float> sinks_;  // [H]
  const Matrix output_;             // [D, H * v]
  const std::vector<float> output_bias_;
  std::optional<Matrix> gate_;  // [H, D], or [H * v, D] with gates of entries
  std::optional<BlockIndexer> indexer_;
};

void reserve(AttentionMemory& memory, const GroupedShape& shape, int64_t num_tokens) {
  grow(memory.query, num_tokens, shape.num_heads * shape.head_dim);
  grow(memory.key, num_tokens, shape.num_kv_heads * shape.head_dim);
  grow(memory.value, num_tokens, shape.num_kv_heads * shape.v_dim);
  grow(memory.values, num_tokens, shape.num_heads * shape.v_dim);
}

void add_bias(const std::vector<float>& bias, float* row) {
  for (size_t i = 0; i < bias.size(); ++i) row[i] += bias[i];
}

// Biases, norms of heads, positions: in place, and keys and scaled values into the cache.
void GroupedAttention::rotate_and_store(const AttentionCall& call, const LayerPlanes& planes) const {
  const GroupedShape& shape = shape_;
  AttentionMemory& memory = call.memory;
  for_tokens(call.pool, call.step.num_tokens(), [&](int64_t token) {
    const int64_t pairs = call.step.batch.positions[token] * (shape.rope_dim / 2);
    const auto turn = [&](float* heads, int64_t num_heads, const std::vector<float>& norm) {
      if (!norm.empty()) {
        const auto width = static_cast<int64_t>(norm.size());
        rms_norm(heads, num_heads * shape.head_dim / width, width, norm.data(), call.rms_eps, heads);
      }
      for (int64_t head = 0; head < num_heads; ++head) {
        rope_half_split(heads + head * shape.head_dim, 1, 1, shape.head_dim, shape.rope_dim,
                        call.rope.cos + pairs, call.rope.sin + pairs);
      }
    };
    float* query = memory.query.data() + token * shape.num_heads * shape.head_dim;
    float* key = memory.key.data() + token * key_width();
    float* value = memory.value.data() + token * value_width();
    add_bias(query_bias_, query);
    add_bias(key_bias_, key);
    add_bias(value_bias_, value);
    turn(query, shape.num_heads, query_norm_);
    turn(key, shape.num_kv_heads, key_norm_);
    const int64_t slot = (has_window() ? call.step.window_slots : call.step.slots)[token];
    planes[0].write(call.kernels, slot * key_width(), key, key_width());
    for (int64_t i = 0; i < value_width(); ++i) value[i] *= shape.value_scale;
    planes[1].write(call.kernels, slot * value_width(), value, value_width());
  });
}

// The matrix of queries computes the query of a head and then the gates of its output.
void GroupedAttention::project_queries(const AttentionCall& call, const float* normed) const {
  AttentionMemory& s = call.memory;
  const int64_t num_tokens = call.step.num_tokens();
  if (!shape_.gates_queries) {
    linear(call.pool, normed, num_tokens, query_, s.query.data());
    return;
  }
  grow(s.projected, num_tokens, query_rows());
  grow(s.gates, num_tokens, query_width());
  linear(call.pool, normed, num_tokens, query_, s.projected.data());
  for_tokens(call.pool, num_tokens, [&](int64_t token) {
    const float* from = s.projected.data() + token * query_rows();
    float* query = s.query.data() + token * query_width();
    float* gates = s.gates.data() + token * query_width();
    for (int64_t head = 0; head < shape_.num_heads; ++head) {
      query = std::copy_n(from, shape_.head_dim, query);
      gates = std::copy_n(from + shape_.head_dim, shape_.head_dim, gates);
      from += 2 * shape_.head_dim;
    }
  });
}

// Multiplies the output of each head, or each of its entries, by the function of its gate.
void GroupedAttention::apply_gates(const AttentionCall& call, const float* normed) const {
  const int64_t num_tokens = call.step.num_tokens();
  AttentionMemory& memory = call.memory;
  if (!shape_.gates_queries) {
    grow(memory.gates, num_tokens, num_gates());
    linear(call.pool, normed, num_tokens, *gate_, memory.gates.data());
  }
  const int64_t width = gates_entries() ? 1 : shape_.v_dim;  // entries of one gate
  for_tokens(call.pool, num_tokens, [&](int64_t token) {
    const float* gates = memory.gates.data() + token * num_gates();
    float* values = memory.values.data() + token * shape_.num_heads * shape_.v_dim;
    for (int64_t gate = 0; gate < num_gates(); ++gate, values += width) {
      const float factor = shape_.softplus_gates ? softplus(gates[gate]) : sigmoid(gates[gate]);
      for (int64_t i = 0; i < width; ++i) values[i] *= factor;
    }
  });
}

void GroupedAttention::attend(const AttentionCall& call, const float* normed, const LayerCache& cache,
                              float* out) const {
  const GroupedShape& shape = shape_;
  const int64_t num_tokens = call.step.num_tokens();
  AttentionMemory& s = call.memory;
  reserve(s, shape, num_tokens);
  project_queries(call, normed);
  linear(call.pool, normed, num_tokens, key_, s.key.data());
  linear(call.pool, normed, num_tokens, value_, s.value.data());
  rotate_and_store(call, cache.planes);
  ChosenPositions chosen{};
  if (indexer_) {
    indexer_->choose(call, normed, cache);
    chosen = {s.chosen.data(), s.num_chosen.data(), shape.index->most_chosen()};
  }
  paged_attention(call.pool, call.kernels, {{s.query.data(), shape.head_dim, shape.head_dim}, {}},
                  {cache.planes[0], key_width(), shape.head_dim},
                  {cache.planes[1], value_width(), shape.v_dim},
                  has_window() ? call.step.window_batch : call.step.batch,
                  {shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.v_dim, shape.softmax_scale,
                   shape.window, sinks_.empty() ? nullptr : sinks_.data()},
                  s.values.data(), indexer_ ? &chosen : nullptr);
  if (gate_ || shape.gates_queries) apply_gates(call, normed);
  linear(call.pool, s.values.data(), num_tokens, output_, out);
  if (output_bias_.empty()) return;
  const int64_t hidden = output_.rows();
  for_tokens(call.pool, num_tokens, [&](int64_t token) { add_bias(output_bias_, out + token * hidden); });
}

}  // namespace

std::shared_ptr<const Attention> make_attention(const GroupedShape& shape, int64_t hidden,
                                                LayerTensors& tensors) {
  return std::make_shared<GroupedAttention>(shape, hidden, tensors);
}

}  // namespace ballast
