// An embedding of n-grams that a layer adds to each row of its stream (Qwen3.8-Flash-Next): each n-gram is
// hashed to rows of a large table.
#pragma once

#include <cstdint>
#include <vector>

#include "model/attention/attention.h"
#include "model/shared/layer_tensors.h"
#include "ops/recurrent/short_conv.h"

namespace ballast {

// N-grams of 2, 3, … tokens end at each token. Each length has the same number of heads, and each head a
// range of rows of the table.
struct NgramShape {
  std::vector<uint64_t> multipliers;  // of an n-gram's last token, of the one before it, …; their number is
                                      // the most tokens of an n-gram
  std::vector<int64_t> head_offsets;  // [heads], the first row of each head; first those of n-grams of 2
  std::vector<int64_t> head_sizes;    // [heads], its rows
  int32_t end_id;     // ends a text: an n-gram has it in place of all tokens before the last one of it
  int64_t conv_taps;  // of a convolution whose taps are as many tokens apart as the longest n-gram has

  int64_t num_heads() const { return static_cast<int64_t>(head_sizes.size()); }
  int64_t most_tokens() const { return static_cast<int64_t>(multipliers.size()); }
};

class NgramEmbedding {
 public:
  // The table, `ngram_table`, is read where it lies.
  NgramEmbedding(const NgramShape& shape, int64_t num_rows, int64_t hidden, LayerTensors& tensors);

  int64_t state_floats() const { return conv_shape().state_floats(); }
  // rows [T, rows, D], in place; states [slots, state_floats].
  void add(const AttentionCall& call, float* states, float* rows) const;

 private:
  int64_t width() const { return num_rows_ * hidden_; }
  ConvShape conv_shape() const { return {width(), shape_.conv_taps, shape_.most_tokens()}; }
  void look_up(const Step& step, int64_t row, int64_t token, float* out) const;
  void gate(const AttentionCall& call, int64_t token, const float* rows) const;

  const NgramShape shape_;
  const int64_t num_rows_;
  const int64_t hidden_;
  const Matrix table_;                 // [rows, row width]
  const Matrix key_;                   // [rows * D, heads * row width]
  const Matrix value_;                 // [D, heads * row width]
  const std::vector<float> key_norm_;  // [rows * D], of each row apart
  const std::vector<float> query_norm_;
  const std::vector<float> conv_norm_;
  const std::vector<float> conv_;  // [taps, rows * D]
};

}  // namespace ballast
