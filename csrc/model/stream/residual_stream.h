// The residual stream of a step's tokens, from which blocks (attention or feed-forward) read, and to which
// they add: one row a token, or several rows that hyper-connections mix.
#pragma once

#include <cstdint>
#include <vector>

#include "threads/thread_pool.h"

namespace ballast {

// Manifold-constrained hyper-connections (arXiv 2512.24880): how a model mixes the rows of its stream.
struct StreamShape {
  int64_t num_rows = 1;  // of a token; 1: a plain residual stream, without hyper-connections
  int64_t rounds = 0;    // of normalising columns and rows of the mixing matrix
  float eps = 0;
  int64_t rank = 0;  // above 0: rows are not mixed, but read and added to by gates of this rank (GatedStream)

  // Weights of a token and block: to read each row, to add to each row, to mix rows.
  int64_t num_weights() const { return num_rows * (2 + num_rows); }
};

// The hyper-connection around one block.
struct HyperConnection {
  std::vector<float> products;  // [weights, rows * D], applied to all rows of a token
  std::vector<float> base;      // [weights]
  std::vector<float> scales;    // [3], of the three kinds of weights, or [1]
};

class ResidualStream {
 public:
  ResidualStream(ThreadPool& pool, int64_t hidden, float rms_eps, const StreamShape& shape)
      : pool_(pool), hidden_(hidden), rms_eps_(rms_eps), shape_(shape) {}

  // Begins a step; the caller writes the embedding of token t to `first_row(t)` and calls `copy_row`.
  void begin(int64_t num_tokens);
  float* first_row(int64_t token) { return rows_.data() + token * token_floats(); }
  // Makes all rows of a token equal to its first.
  void copy_row(int64_t token);

  // Adds what the last block has computed, the sum of `added`, each [T, D], and writes the input of the next
  // block, which has this hyper-connection and norm; null in a plain stream. normed [T, D].
  void next_block(const std::vector<const float*>& added, const HyperConnection* connection,
                  const std::vector<float>& norm, float* normed);
  // One token's row after the last block, whose results are `added`: the mean of its rows, or their sum by
  // the weights of `end`, which has no others than those to read; out [D].
  void finish(const std::vector<const float*>& added, int64_t token, const HyperConnection* end,
              float* out) const;

 private:
  int64_t token_floats() const { return shape_.num_rows * hidden_; }
  float* weights_of(int64_t token) { return weights_.data() + token * shape_.num_weights(); }
  const float* weights_of(int64_t token) const { return weights_.data() + token * shape_.num_weights(); }

  void add(const std::vector<const float*>& added, int64_t token, int64_t begin, int64_t end, float* rows,
           const float* old) const;
  void multiply(const HyperConnection& connection);
  void make_weights(const HyperConnection& connection, int64_t token);
  void balance(float* mix) const;
  void read(int64_t token, float* out) const;

  ThreadPool& pool_;
  const int64_t hidden_;
  const float rms_eps_;
  const StreamShape shape_;
  int64_t num_tokens_ = 0;
  bool has_block_ = false;      // whether a block of this step has read
  std::vector<float> rows_;     // [T, rows, D]
  std::vector<float> weights_;  // [T, weights], of the block that read last
  std::vector<float> sums_;     // [T, chunks, weights], products of a part of the columns
};

}  // namespace ballast
