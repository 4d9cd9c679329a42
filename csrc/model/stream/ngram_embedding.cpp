#include "model/stream/ngram_embedding.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/ids.h"
#include "model/shared/fits.h"
#include "model/shared/recurrent.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/pointwise.h"
#include "ops/vector.h"

namespace ballast {
namespace {

NgramShape checked(const NgramShape& shape, const std::string& layer) {
  const int64_t most = shape.most_tokens();
  require(most >= 2 && most <= kEarlierTokens + 1, layer + " embeds n-grams of up to " +
                                                       std::to_string(most) + " tokens; expected 2 to " +
                                                       std::to_string(kEarlierTokens + 1));
  require(shape.num_heads() > 0 && shape.num_heads() % (most - 1) == 0 &&
              shape.head_offsets.size() == shape.head_sizes.size(),
          layer + " has " + std::to_string(shape.num_heads()) + " sizes and " +
              std::to_string(shape.head_offsets.size()) +
              " offsets of heads; expected as many, and equal parts for " + std::to_string(most - 1) +
              " lengths of n-grams");
  require(shape.conv_taps >= 2,
          layer + " has a convolution of " + std::to_string(shape.conv_taps) + " taps; expected 2 or more");
  return shape;
}

Matrix checked_table(const NgramShape& shape, const Matrix& table, const std::string& layer) {
  require(table.panels() == nullptr, layer + ".ngram_table is packed; expected the blocks of the file");
  for (size_t head = 0; head < shape.head_sizes.size(); ++head) {
    const int64_t first = shape.head_offsets[head], size = shape.head_sizes[head];
    require(first >= 0 && size > 0 && size <= table.rows() && first <= table.rows() - size,
            layer + ".ngram_table has " + std::to_string(table.rows()) + " rows; head " +
                std::to_string(head) + " expects " + std::to_string(size) + " from row " +
                std::to_string(first));
  }
  return table;
}

}  // namespace

NgramEmbedding::NgramEmbedding(const NgramShape& shape, int64_t num_rows, int64_t hidden,
                               LayerTensors& tensors)
    : shape_(checked(shape, tensors.layer())),
      num_rows_(num_rows),
      hidden_(hidden),
      table_(checked_table(shape, tensors.any_matrix("ngram_table"), tensors.layer())),
      key_(tensors.matrix("ngram_key", width(), shape.num_heads() * table_.cols())),
      value_(tensors.matrix("ngram_value", hidden, shape.num_heads() * table_.cols())),
      key_norm_(tensors.vector("ngram_key_norm", width())),
      query_norm_(tensors.vector("ngram_query_norm", width())),
      conv_norm_(tensors.vector("ngram_conv_norm", width())),
      conv_(by_tap(tensors.vector("ngram_conv", width() * shape.conv_taps), shape.conv_taps)) {}

// `token`: of the step, in this row of it. out [heads, row width]. The rows of `NgramRows.row_ids` in Python,
// which hybrids use; tests/runtime/model/hybrid/test_recurrent_layers.py compares both.
void NgramEmbedding::look_up(const Step& step, int64_t row, int64_t token, float* out) const {
  const int64_t per_length = shape_.num_heads() / (shape_.most_tokens() - 1);
  uint64_t hash = static_cast<uint64_t>(step.token_ids[token]) * shape_.multipliers[0];
  bool has_ended = false;
  for (int64_t back = 1; back < shape_.most_tokens(); ++back) {
    const int64_t at = token - step.batch.query_indptr[row] - back;
    int32_t id = kNoToken;
    if (at >= 0) {
      id = step.token_ids[token - back];
    } else if (step.earlier_ids != nullptr) {
      id = step.earlier_ids[(row + 1) * kEarlierTokens + at];
    }
    has_ended = has_ended || id == kNoToken || id == shape_.end_id;
    hash ^=
        static_cast<uint64_t>(has_ended ? shape_.end_id : id) * shape_.multipliers[static_cast<size_t>(back)];
    for (int64_t i = 0; i < per_length; ++i, out += table_.cols()) {
      const auto head = static_cast<size_t>((back - 1) * per_length + i);
      const uint64_t own = hash % static_cast<uint64_t>(shape_.head_sizes[head]);
      table_.dequantize_row(shape_.head_offsets[head] + static_cast<int64_t>(own), out);
    }
  }
}

// projected: the token's products of keys → what is added before the convolution; mixed: its normed form.
void NgramEmbedding::gate(const AttentionCall& call, int64_t token, const float* rows) const {
  AttentionMemory& s = call.memory;
  float* keys = s.projected.data() + token * width();
  float* normed = s.mixed.data() + token * width();
  const float* value = s.value.data() + token * hidden_;
  for (int64_t row = 0; row < num_rows_; ++row) {
    const int64_t at = row * hidden_;
    rms_norm(keys + at, 1, hidden_, key_norm_.data() + at, call.rms_eps, keys + at);
    rms_norm(rows + at, 1, hidden_, query_norm_.data() + at, call.rms_eps, normed + at);
    const float score = dot(keys + at, normed + at, hidden_) / std::sqrt(static_cast<float>(hidden_));
    const float root = std::sqrt(std::max(std::abs(score), 1e-6f));
    const float share = sigmoid(score == 0.0f ? 0.0f : std::copysign(root, score));
    for (int64_t i = 0; i < hidden_; ++i) keys[at + i] = share * value[i];
    rms_norm(keys + at, 1, hidden_, conv_norm_.data() + at, call.rms_eps, normed + at);
  }
}

void NgramEmbedding::add(const AttentionCall& call, float* states, float* rows) const {
  AttentionMemory& s = call.memory;
  const Step& step = call.step;
  const int64_t num_tokens = step.num_tokens(), embedded = shape_.num_heads() * table_.cols();
  grow(s.query, num_tokens, embedded);
  grow(s.value, num_tokens, hidden_);
  grow(s.projected, num_tokens, width());
  grow(s.mixed, num_tokens, width());
  grow(s.convolved, num_tokens, width());
  // A task per token: rows may have to be read from the disk.
  call.pool.parallel_for(num_tokens, [&](int64_t token) {
    const int64_t row = step.batch.request_of(token);
    look_up(step, row, token, s.query.data() + token * embedded);
  });
  linear(call.pool, s.query.data(), num_tokens, key_, s.projected.data());
  linear(call.pool, s.query.data(), num_tokens, value_, s.value.data());
  for_tokens(call.pool, num_tokens, [&](int64_t token) { gate(call, token, rows + token * width()); });
  short_conv(call.pool, call.kernels, conv_shape(), conv_.data(), s.mixed.data(), step.states, states,
             s.convolved.data());
  for_tokens(call.pool, num_tokens, [&](int64_t token) {
    const int64_t at = token * width();
    for (int64_t i = at; i < at + width(); ++i) {
      rows[i] += s.projected[static_cast<size_t>(i)] + s.convolved[static_cast<size_t>(i)];
    }
  });
}

}  // namespace ballast
