#include "model/stream/gated_stream.h"

#include <algorithm>

#include "base/index_range.h"
#include "model/shared/fits.h"
#include "model/shared/step.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/pointwise.h"

namespace ballast {
namespace {

// Columns of a row that a task computes.
constexpr int64_t kGateCols = 640;

}  // namespace

StreamGates make_stream_gates(const std::string& block, int64_t num_rows, int64_t rank, int64_t hidden,
                              bool injects, LayerTensors& tensors) {
  const int64_t width = num_rows * hidden;
  require(hidden % 8 == 0, tensors.layer() + " has rows of " + std::to_string(hidden) +
                               " numbers in its stream; expected a multiple of 8");
  StreamGates gates{tensors.vector(block + "_stream_norm", width),
                    tensors.matrix(block + "_stream_down", rank, width),
                    tensors.matrix(block + "_stream_up", width, rank), std::nullopt};
  if (injects) gates.inject = tensors.matrix(block + "_stream_inject", num_rows, width);
  return gates;
}

void GatedStream::begin(int64_t num_tokens) {
  num_tokens_ = num_tokens;
  grow(rows_, num_tokens, width());
  grow(normed_, num_tokens, width());
  grow(gates_, num_tokens, width());
  grow(weights_, num_tokens, num_rows_);
}

void GatedStream::copy_row(int64_t token) {
  float* first = first_row(token);
  for (int64_t row = 1; row < num_rows_; ++row) std::copy_n(first, hidden_, first + row * hidden_);
}

// per_part(token, columns of a row), each in a task of its own.
template <class PerPart>
void GatedStream::for_parts(int64_t num_tokens, const PerPart& per_part) {
  const Chunks parts(hidden_, kGateCols);
  pool_.parallel_for(num_tokens * parts.count(),
                     [&](int64_t task) { per_part(task / parts.count(), parts[task % parts.count()]); });
}

void GatedStream::add(const std::vector<const float*>& added) {
  if (added.empty()) return;
  for_parts(num_tokens_, [&](int64_t token, IndexRange cols) {
    float sums[kGateCols];
    std::copy(added[0] + token * hidden_ + cols.begin, added[0] + token * hidden_ + cols.end, sums);
    for (size_t output = 1; output < added.size(); ++output) {
      const float* from = added[output] + token * hidden_ + cols.begin;
      for (int64_t i = 0; i < cols.size(); ++i) sums[i] += from[i];
    }
    for (int64_t row = 0; row < num_rows_; ++row) {
      const float weight = weights_[static_cast<size_t>(token * num_rows_ + row)];
      float* to = first_row(token) + row * hidden_ + cols.begin;
      for (int64_t i = 0; i < cols.size(); ++i) to[i] += weight * sums[i];
    }
  });
}

// One token's rows.
void GatedStream::norm_rows(const StreamGates& gates, const float* rows, float* out) const {
  for (int64_t row = 0; row < num_rows_; ++row) {
    rms_norm(rows + row * hidden_, 1, hidden_, gates.norm.data() + row * hidden_, rms_eps_,
             out + row * hidden_);
  }
}

// Of the first tokens of normed_.
void GatedStream::mix(const StreamGates& gates, int64_t num_tokens, float* out) {
  const int64_t rank = gates.down.rows();
  const float by_rows = 1.0f / static_cast<float>(num_rows_);
  grow(low_, num_tokens, rank);
  linear(pool_, normed_.data(), num_tokens, gates.down, low_.data());
  for_tokens(pool_, num_tokens, [&](int64_t token) {
    float* low = low_.data() + token * rank;
    for (int64_t i = 0; i < rank; ++i) low[i] = silu(low[i] * by_rows);
  });
  linear(pool_, low_.data(), num_tokens, gates.up, gates_.data());
  for_parts(num_tokens, [&](int64_t token, IndexRange cols) {
    float* mean = out + token * hidden_ + cols.begin;
    std::fill_n(mean, cols.size(), 0.0f);
    for (int64_t row = 0; row < num_rows_; ++row) {
      const int64_t first = token * width() + row * hidden_ + cols.begin;
      float* gated = gates_.data() + first;
      const float* normed = normed_.data() + first;
      if (kernels_ != nullptr) {
        kernels_->sigmoid_mul(gated, normed, cols.size(), gated);
      } else {
        for (int64_t i = 0; i < cols.size(); ++i) gated[i] = sigmoid(gated[i]) * normed[i];
      }
      for (int64_t i = 0; i < cols.size(); ++i) mean[i] += gated[i];
    }
    for (int64_t i = 0; i < cols.size(); ++i) mean[i] *= by_rows;
  });
}

void GatedStream::read(const StreamGates& gates, float* out) {
  for_tokens(pool_, num_tokens_,
             [&](int64_t token) { norm_rows(gates, first_row(token), normed_.data() + token * width()); });
  mix(gates, num_tokens_, out);
  linear(pool_, normed_.data(), num_tokens_, *gates.inject, weights_.data());
  for (int64_t i = 0; i < num_tokens_ * num_rows_; ++i) {
    float& weight = weights_[static_cast<size_t>(i)];
    weight = 2.0f * sigmoid(weight / static_cast<float>(num_rows_));
  }
}

void GatedStream::finish(const StreamGates& gates, const int64_t* sampled, int64_t num_sampled, float* out) {
  for_tokens(pool_, num_sampled,
             [&](int64_t i) { norm_rows(gates, first_row(sampled[i]), normed_.data() + i * width()); });
  mix(gates, num_sampled, out);
}

}  // namespace ballast
