// Entries that stand for several tokens each (DeepSeek-V4): the cache keeps one per `ratio` tokens, and the
// state of a sequence what its open entries consist of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "model/attention/attention.h"
#include "model/shared/layer_tensors.h"

namespace ballast {

struct CompressorShape {
  int64_t width;     // of an entry
  int64_t ratio;     // tokens after which an entry is complete
  int64_t rope_dim;  // the last entries of `width`, rotated by the position of the first of these tokens
  bool overlaps;     // whether an entry also takes in the `ratio` tokens before them

  // What a token gives: to the next entry, if these overlap, and then to its own.
  int64_t columns() const { return overlaps ? 2 * width : width; }
  // Floats of a sequence's state: maximum, sum and total of the softmax of each column.
  int64_t state_floats() const { return 3 * columns(); }
  // Number of tokens at the end of an entry whose rows hold it; they are in one block of the cache.
  int64_t row_tokens() const { return std::min<int64_t>(ratio, 16); }
  // Floats per token in the plane.
  int64_t row_floats() const { return width / row_tokens(); }
};

// Entry w is complete after token (w + 1) * ratio - 1. It is the mean of what its tokens give, each column
// weighted by the softmax of the tokens' gates for it, then normed and rotated.
class Compressor {
 public:
  // Takes the tensors `role`_value, _gate, _offset and _norm.
  Compressor(const CompressorShape& shape, const std::string& role, int64_t hidden, LayerTensors& tensors);

  const CompressorShape& shape() const { return shape_; }
  // Writes the entries that the step completes into the plane, and the states; normed [T, D].
  void write(const AttentionCall& call, const float* normed, float* states, const CachePlane& plane) const;

  // Where the entry lies that the token of this slot completes, in numbers from the plane's begin.
  int64_t entry_at(int64_t slot) const {
    return slot / shape_.row_tokens() * shape_.row_tokens() * shape_.row_floats();
  }

 private:
  void pass(const AttentionCall& call, int64_t row, int64_t begin, int64_t end, float* states) const;

  const CompressorShape shape_;
  const Matrix value_;               // [columns, D]
  const Matrix gate_;                // [columns, D]
  const std::vector<float> offset_;  // [ratio, columns], is added to the gates
  const std::vector<float> norm_;    // [width]
};

}  // namespace ballast
