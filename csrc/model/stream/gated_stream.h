// A residual stream of several rows per token whose blocks read a gated mean of them and add to each of them
// with a weight (Qwen3.8-Flash-Next). Gates and weights depend on the rows.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cpu/kernels.h"
#include "model/shared/layer_tensors.h"
#include "threads/thread_pool.h"

namespace ballast {

// What a block needs to read the stream, and to add to it. The output only reads.
struct StreamGates {
  std::vector<float> norm;       // [rows * D], of each row apart
  Matrix down;                   // [rank, rows * D]
  Matrix up;                     // [rows * D, rank]
  std::optional<Matrix> inject;  // [rows, rows * D]
};

// The gates of the tensors `<block>_stream_…`, checked.
StreamGates make_stream_gates(const std::string& block, int64_t num_rows, int64_t rank, int64_t hidden,
                              bool injects, LayerTensors& tensors);

class GatedStream {
 public:
  // Null kernels stand for the reference.
  GatedStream(ThreadPool& pool, const Kernels* kernels, int64_t hidden, float rms_eps, int64_t num_rows)
      : pool_(pool), kernels_(kernels), hidden_(hidden), rms_eps_(rms_eps), num_rows_(num_rows) {}

  // Begins a step; the caller writes the embedding of token t to `first_row(t)` and calls `copy_row`.
  void begin(int64_t num_tokens);
  float* first_row(int64_t token) { return rows_.data() + token * width(); }
  // Makes all rows of a token equal to its first.
  void copy_row(int64_t token);
  float* rows() { return rows_.data(); }  // [T, rows, D]

  // Adds what the block that read last has computed, the sum of `added`, each [T, D].
  void add(const std::vector<const float*>& added);
  // The input of a block, [T, D].
  void read(const StreamGates& gates, float* out);
  // The input of the output, for these tokens alone, ascending; out [num_sampled, D].
  void finish(const StreamGates& gates, const int64_t* sampled, int64_t num_sampled, float* out);

 private:
  int64_t width() const { return num_rows_ * hidden_; }
  void norm_rows(const StreamGates& gates, const float* rows, float* out) const;
  void mix(const StreamGates& gates, int64_t num_tokens, float* out);

  template <class PerPart>
  void for_parts(int64_t num_tokens, const PerPart& per_part);

  ThreadPool& pool_;
  const Kernels* const kernels_;
  const int64_t hidden_;
  const float rms_eps_;
  const int64_t num_rows_;
  int64_t num_tokens_ = 0;
  std::vector<float> rows_;     // [T, rows, D]
  std::vector<float> normed_;   // [T, rows, D]
  std::vector<float> low_;      // [T, rank]
  std::vector<float> gates_;    // [T, rows, D], then their products with normed rows
  std::vector<float> weights_;  // [T, rows], to add to each row
};

}  // namespace ballast
