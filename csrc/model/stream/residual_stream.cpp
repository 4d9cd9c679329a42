#include "model/stream/residual_stream.h"

#include <algorithm>
#include <cmath>

#include "base/index_range.h"
#include "base/scratch.h"
#include "model/shared/step.h"
#include "ops/norm.h"
#include "ops/pointwise.h"
#include "ops/vector.h"

namespace ballast {
namespace {

constexpr int64_t kTaskTokens = 4;
// Columns of a row of products. Their number is independent of the step, and so are the sums' order and bits.
constexpr int64_t kTaskCols = 2048;
constexpr int64_t kAddCols = 1024;

}  // namespace

void ResidualStream::begin(int64_t num_tokens) {
  num_tokens_ = num_tokens;
  has_block_ = false;
  grow(rows_, num_tokens, token_floats());
  if (shape_.num_rows == 1) return;
  grow(weights_, num_tokens, shape_.num_weights());
  grow(sums_, num_tokens, Chunks(token_floats(), kTaskCols).count() * shape_.num_weights());
}

void ResidualStream::copy_row(int64_t token) {
  float* first = first_row(token);
  for (int64_t row = 1; row < shape_.num_rows; ++row) std::copy_n(first, hidden_, first + row * hidden_);
}

// rows_j = post_j added + sum over i of mix_ij old_i, in columns begin … end - 1; rows may be old.
void ResidualStream::add(const std::vector<const float*>& added, int64_t token, int64_t begin, int64_t end,
                         float* rows, const float* old) const {
  const int64_t n = shape_.num_rows;
  const float* post = weights_of(token) + n;
  const float* mix = post + n;
  const Scratch<float> scratch((n + 1) * kAddCols);
  for (int64_t from = begin; from < end; from += kAddCols) {
    const int64_t count = std::min(kAddCols, end - from);
    float* sum = scratch.get();
    std::fill_n(sum, count, 0.0f);
    for (const float* output : added) {
      for (int64_t k = 0; k < count; ++k) sum[k] += output[token * hidden_ + from + k];
    }
    for (int64_t j = 0; j < n; ++j) {
      float* to = sum + (j + 1) * kAddCols;
      for (int64_t k = 0; k < count; ++k) to[k] = post[j] * sum[k];
      for (int64_t i = 0; i < n; ++i) {
        const float share = mix[i * n + j];
        const float* row = old + i * hidden_ + from;
        for (int64_t k = 0; k < count; ++k) to[k] += share * row[k];
      }
    }
    for (int64_t j = 0; j < n; ++j) {
      std::copy_n(sum + (j + 1) * kAddCols, count, rows + j * hidden_ + from);
    }
  }
}

// The products of all rows of each token with a connection's matrix, by chunks of columns.
void ResidualStream::multiply(const HyperConnection& connection) {
  const int64_t width = token_floats(), num_weights = shape_.num_weights();
  const Chunks chunks(width, kTaskCols), blocks(num_tokens_, kTaskTokens);
  pool_.parallel_for(chunks.count() * blocks.count(), [&](int64_t task) {
    const IndexRange cols = chunks[task / blocks.count()];
    const IndexRange tokens = blocks[task % blocks.count()];
    for (int64_t token = tokens.begin; token < tokens.end; ++token) {
      const float* x = rows_.data() + token * width + cols.begin;
      float* sums = sums_.data() + (token * chunks.count() + task / blocks.count()) * num_weights;
      for (int64_t w = 0; w < num_weights; ++w) {
        sums[w] = dot(connection.products.data() + w * width + cols.begin, x, cols.size());
      }
    }
  });
}

// Makes the rows and columns of mix [n, n] sum to about 1, by Sinkhorn's algorithm.
void ResidualStream::balance(float* mix) const {
  const int64_t n = shape_.num_rows;
  const auto divide = [&](int64_t stride, int64_t step) {
    for (int64_t line = 0; line < n; ++line) {
      float* first = mix + line * stride;
      float sum = 0.0f;
      for (int64_t i = 0; i < n; ++i) sum += first[i * step];
      for (int64_t i = 0; i < n; ++i) first[i * step] /= sum + shape_.eps;
    }
  };
  divide(1, n);  // columns
  for (int64_t round = 1; round < shape_.rounds; ++round) {
    divide(n, 1);
    divide(1, n);
  }
}

void ResidualStream::make_weights(const HyperConnection& connection, int64_t token) {
  const int64_t n = shape_.num_rows, num_weights = shape_.num_weights(), width = token_floats();
  const int64_t num_chunks = Chunks(width, kTaskCols).count();
  const float* rows = rows_.data() + token * width;
  const float mean = dot(rows, rows, width) / static_cast<float>(width);
  const float norm = 1.0f / std::sqrt(mean + rms_eps_);
  const float* sums = sums_.data() + token * num_chunks * num_weights;
  float* weights = weights_of(token);
  for (int64_t w = 0; w < num_weights; ++w) {
    float product = 0.0f;
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) product += sums[chunk * num_weights + w];
    const float scale = connection.scales[static_cast<size_t>(std::min<int64_t>(w / n, 2))];
    weights[w] = product * norm * scale + connection.base[static_cast<size_t>(w)];
  }
  for (int64_t i = 0; i < n; ++i) {
    weights[i] = sigmoid(weights[i]) + shape_.eps;
    weights[n + i] = 2.0f * sigmoid(weights[n + i]);
  }
  for (int64_t i = 0; i < n; ++i) {
    float* row = weights + (2 + i) * n;
    const float most = *std::max_element(row, row + n);
    float sum = 0.0f;
    for (int64_t j = 0; j < n; ++j) sum += row[j] = std::exp(row[j] - most);
    for (int64_t j = 0; j < n; ++j) row[j] = row[j] / sum + shape_.eps;
  }
  balance(weights + 2 * n);
}

void ResidualStream::read(int64_t token, float* out) const {
  const float* rows = rows_.data() + token * token_floats();
  const float* shares = weights_of(token);
  std::fill_n(out, hidden_, 0.0f);
  for (int64_t row = 0; row < shape_.num_rows; ++row, rows += hidden_) {
    for (int64_t i = 0; i < hidden_; ++i) out[i] += shares[row] * rows[i];
  }
}

void ResidualStream::next_block(const std::vector<const float*>& added, const HyperConnection* connection,
                                const std::vector<float>& norm, float* normed) {
  if (shape_.num_rows == 1) {
    for_tokens(pool_, num_tokens_, [&](int64_t token) {
      float* row = first_row(token);
      for (const float* output : added) {
        for (int64_t i = 0; i < hidden_; ++i) row[i] += output[token * hidden_ + i];
      }
      rms_norm(row, 1, hidden_, norm.data(), rms_eps_, normed + token * hidden_);
    });
    return;
  }
  const Chunks parts(hidden_, kAddCols);
  pool_.parallel_for(has_block_ ? num_tokens_ * parts.count() : 0, [&](int64_t task) {
    const int64_t token = task / parts.count();
    const IndexRange cols = parts[task % parts.count()];
    add(added, token, cols.begin, cols.end, first_row(token), first_row(token));
  });
  has_block_ = true;
  multiply(*connection);
  for_tokens(pool_, num_tokens_, [&](int64_t token) {
    make_weights(*connection, token);
    float* out = normed + token * hidden_;
    read(token, out);
    rms_norm(out, 1, hidden_, norm.data(), rms_eps_, out);
  });
}

void ResidualStream::finish(const std::vector<const float*>& added, int64_t token, const HyperConnection* end,
                            float* out) const {
  const float* old = rows_.data() + token * token_floats();
  if (shape_.num_rows == 1) {
    std::copy_n(old, hidden_, out);
    for (const float* output : added) {
      for (int64_t i = 0; i < hidden_; ++i) out[i] += output[token * hidden_ + i];
    }
    return;
  }
  const Scratch<float> scratch(token_floats());
  float* rows = scratch.get();
  add(added, token, 0, hidden_, rows, old);
  const int64_t width = token_floats();
  const float norm =
      end == nullptr ? 0.0f : 1.0f / std::sqrt(dot(rows, rows, width) / static_cast<float>(width) + rms_eps_);
  std::fill_n(out, hidden_, 0.0f);
  for (int64_t row = 0; row < shape_.num_rows; ++row) {
    float share = 1.0f;
    if (end != nullptr) {
      const float product = dot(end->products.data() + row * width, rows, width) * norm;
      share = sigmoid(product * end->scales[0] + end->base[static_cast<size_t>(row)]) + shape_.eps;
    }
    for (int64_t i = 0; i < hidden_; ++i) out[i] += share * rows[row * hidden_ + i];
  }
  if (end != nullptr) return;
  for (int64_t i = 0; i < hidden_; ++i) out[i] /= static_cast<float>(shape_.num_rows);
}

}  // namespace ballast
