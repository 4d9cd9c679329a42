// The routed experts of one layer, divided among the nodes of a pool along the intermediate dimension: each
// node holds the same rows of gate and up and the same columns of down of every expert, in memory of its own
// (docs/decisions/0007-experts-split-across-nodes.md). The plain reference of the split.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "numa/memory.h"
#include "numa/thread_pool.h"
#include "quant/matrix.h"

namespace ballast {

// A stacked matrix as GGUF has it: blocks of rows * cols weights.
struct StackedBlocks {
  const uint8_t* data;
  int64_t num_bytes;
  int ggml_type;
};

class SplitExperts {
 public:
  // gate and up [E * I, D], down [E * D, I]; copied, each part by the threads of its node, and not needed
  // afterwards. Throws std::invalid_argument for an unknown type or a byte count that does not fit.
  SplitExperts(ThreadPool& pool, const StackedBlocks& gate, const StackedBlocks& up,
               const StackedBlocks& down, int64_t num_experts, int64_t hidden, int64_t width);

  // As Experts::forward, with partial sums added in the order of nodes; `pool` has the nodes that it was made
  // for.
  void forward(ThreadPool& pool, const float* x, int64_t num_tokens, const int32_t* ids, const float* weights,
               int64_t num_chosen, float* out) const;

  // Of weights, on the pool's `node`.
  int64_t node_bytes(int node) const;

 private:
  struct Part {
    int64_t width;  // of I
    std::unique_ptr<NodePages> gate_pages, up_pages, down_pages;
    // Empty when the node has no share of I.
    std::vector<Matrix> gate_up_down;

    const Matrix& gate() const { return gate_up_down[0]; }
    const Matrix& up() const { return gate_up_down[1]; }
    const Matrix& down() const { return gate_up_down[2]; }
  };

  int64_t num_experts_;
  int64_t hidden_;
  std::vector<Part> parts_;  // one a node
};

}  // namespace ballast
