// Experts of one layer, routed or shared, grouped: each selected expert's weights are read once per call, for
// any batch size. Packed experts are divided among the nodes of a pool along the intermediate dimension: each
// node holds the same rows of gate and up and the same columns of down of every expert.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "moe/grouping.h"
#include "ops/pointwise.h"
#include "quant/matrix.h"
#include "threads/thread_pool.h"

namespace ballast {

// One matrix per expert, inside the rows of a larger one, with one scale per expert.
struct ExpertMatrices {
  Matrix matrix;
  HeadRows rows;
};

// Biases of each expert's products. Gate and up [E * I], down [E * D].
struct ExpertBiases {
  std::vector<float> gate, up, down;
};

// The range of the intermediate dimension on each node: whole blocks of down and of its activations.
std::vector<IndexRange> ranges_by_node(const FormatTraits& down, int64_t width,
                                       const std::vector<int>& threads_per_node);

class Experts {
 public:
  // Of one node: some rows of each expert's gate and up, and as many columns of down.
  struct Part {
    int node;         // of the pool, counted from 0
    int kernel_node;  // the kernel's number of it, or kUnknownNode
    std::shared_ptr<const Panels> gate, up, down;
    int64_t first_row;  // of gate and up
  };
  // Factors of an expert's products with gate, up and down.
  struct Scales {
    float gate, up, down;
  };

  // Stacked matrices, none of them packed: gate and up [E * I, D], down [E * D, I]. Throws
  // std::invalid_argument when they do not fit.
  Experts(const Matrix& gate, const Matrix& up, const Matrix& down, int64_t num_experts);
  // gate_up [E * 2 I, D]: of each expert first gate's rows, then up's.
  Experts(const Matrix& gate_up, const Matrix& down, int64_t num_experts);

  // The same experts with biases. Throws std::invalid_argument when one does not fit.
  Experts with_biases(ExpertBiases biases) const;
  // The same experts with another unit instead of silu(gate) * up.
  Experts with_unit(const ClampedUnit& unit) const;
  const ExpertBiases* biases() const { return biases_.get(); }
  const std::optional<ClampedUnit>& unit() const { return unit_; }

  // The same experts, packed by ExpertsPacking into memory alone.
  Experts packed(ThreadPool& pool, const PanelTarget& target) const;

  int64_t num_experts() const { return gate_.rows.num_heads; }
  int64_t hidden_width() const { return gate_.matrix.cols(); }
  int64_t expert_width() const { return down_.matrix.cols(); }
  Scales scales(int64_t expert) const {
    return {gate_.matrix.scale(expert), up_.matrix.scale(expert), down_.matrix.scale(expert)};
  }
  // Bytes of one expert's weights as the file stores them.
  int64_t expert_bytes() const;
  // How many tokens each expert has computed, in this object and in every copy. Thread-safe.
  std::vector<int64_t> uses() const { return {uses_->begin(), uses_->end()}; }
  // By node, without nodes that have no share; empty for experts that are not packed.
  const std::vector<Part>& parts() const { return parts_; }
  // A part's gate, up and down, packed.
  std::array<Matrix, 3> matrices(const Part& part) const;

  // out [T, D], out[t] = Σ weights[t, k] · down_e(silu(gate_e x[t]) * up_e x[t]) with e = ids[t, k], or with
  // its biases and unit, added in ascending order of e, each node's part by itself, then the parts in the
  // order of nodes; x [T, D]; ids, weights [T, k]; an id of -1 adds nothing. Returns how many experts'
  // weights it has read. Throws std::out_of_range for any other id that is no expert.
  int64_t forward(ThreadPool& pool, const float* x, int64_t num_tokens, const int32_t* ids,
                  const float* weights, int64_t num_chosen, float* out) const;

  // The arguments of `forward` that calls over the same x do not share.
  struct Call {
    const Experts* experts;
    const int32_t* ids;
    const float* weights;
    int64_t num_chosen;
    float* out;
  };
  // Does what `forward` does for several calls, which share one hidden width and have an `out` each; returns
  // the bytes that each has read.
  static std::vector<int64_t> forward_all(ThreadPool& pool, const float* x, int64_t num_tokens,
                                          const std::vector<Call>& calls);

 private:
  friend class ExpertsPacking;

  Experts(const ExpertMatrices& gate, const ExpertMatrices& up, const ExpertMatrices& down);

  void forward_in_place(ThreadPool& pool, const float* x, int64_t num_tokens, const Grouping& all,
                        float* out) const;

  ExpertMatrices gate_;
  ExpertMatrices up_;
  ExpertMatrices down_;
  std::shared_ptr<const ExpertBiases> biases_;
  std::optional<ClampedUnit> unit_;
  std::vector<Part> parts_;
  int num_nodes_ = 0;  // that they are packed for
  std::shared_ptr<std::vector<std::atomic<int64_t>>> uses_;
};

}  // namespace ballast
