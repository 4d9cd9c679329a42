// Routed experts over packed weights: gate and up in one pass, their product rounded for down as it is made.
#include <algorithm>
#include <vector>

#include "moe/experts.h"
#include "numa/index_range.h"
#include "ops/activations.h"

namespace ballast {
namespace {

constexpr int kUnitPanels =
    kGroupCols / kPanelRows;  // panels of gate that make a block of down's activations

// What goes into down: [members][width], rounded or as floats.
class Hidden {
 public:
  Hidden(const Panels& down, int64_t num_members)
      : kernels_(down.activation_kernels()),
        quantized_(down.takes_quantized()),
        width_(down.cols()),
        block_lines_(kernels_.block_bytes / int64_t{sizeof(CacheLine)}),
        row_lines_(width_ / kGroupCols * block_lines_) {
    if (quantized_) {
      quants_ = uninitialized<CacheLine>(num_members * row_lines_);
    } else {
      floats_ = uninitialized<float>(num_members * width_);
    }
    rows_.reserve(static_cast<size_t>(num_members));
    for (int64_t member = 0; member < num_members; ++member) {
      rows_.push_back(quantized_ ? static_cast<const void*>(quants_.get() + member * row_lines_)
                                 : static_cast<const void*>(floats_.get() + member * width_));
    }
  }

  const void* const* rows() const { return rows_.data(); }

  // The 32 values of a member from column unit * 32 on; those beyond the width are dropped.
  void store(int64_t member, int64_t unit, const float* values) {
    if (quantized_) {
      kernels_.quantize(values, 1, quants_.get() + member * row_lines_ + unit * block_lines_);
    } else {
      const int64_t begin = unit * kGroupCols;
      std::copy_n(values, std::min<int64_t>(kGroupCols, width_ - begin),
                  floats_.get() + member * width_ + begin);
    }
  }

 private:
  const ActivationKernels& kernels_;
  const bool quantized_;
  const int64_t width_;
  const int64_t block_lines_;
  const int64_t row_lines_;
  std::unique_ptr<CacheLine[]> quants_;
  std::unique_ptr<float[]> floats_;
  std::vector<const void*> rows_;
};

std::vector<const void*> rows_of_members(const Activations& activations, const Grouping& all) {
  std::vector<const void*> rows;
  rows.reserve(all.tokens.size());
  for (const int64_t token : all.tokens) rows.push_back(activations.row(token));
  return rows;
}

}  // namespace

void Experts::forward_packed(ThreadPool& pool, const float* x, int64_t num_tokens, const Grouping& all,
                             float* out) const {
  const Panels& gate = *gate_.panels();
  const Panels& up = *up_.panels();
  const Panels& down = *down_.panels();
  const Kernels& kernels = gate.kernels();
  const int64_t num_groups = static_cast<int64_t>(all.groups.size());

  const Activations for_gate(pool, gate, x, num_tokens);
  // Gate and up are mostly of one type; then they share the rounded activations.
  const bool shared =
      gate.takes_quantized() == up.takes_quantized() && gate.activation_bytes() == up.activation_bytes();
  const Activations for_up(pool, shared ? gate : up, x, shared ? 0 : num_tokens);
  const std::vector<const void*> gate_rows = rows_of_members(for_gate, all);
  const std::vector<const void*> up_rows = shared ? gate_rows : rows_of_members(for_up, all);
  Hidden hidden(down, all.num_members());

  const int64_t num_panels = gate.panels_per_head();
  const int64_t num_units = (num_panels + kUnitPanels - 1) / kUnitPanels;
  const Chunks unit_runs(num_units, panels_per_task(num_units, num_groups, pool.num_threads()));
  const int64_t block_tokens = tokens_per_block(gate);
  pool.parallel_for(num_groups * unit_runs.count(), [&](int64_t task) {
    const Grouping::Group& group = all.groups[static_cast<size_t>(task / unit_runs.count())];
    const IndexRange run = unit_runs[task % unit_runs.count()];
    const Chunks blocks(group.members.size(), block_tokens);
    float gates[kMostBlockTokens * kPanelRows];
    float ups[kMostBlockTokens * kPanelRows];
    float unit_values[kMostBlockTokens][kGroupCols] = {};
    for (int64_t block = 0; block < blocks.count(); ++block) {
      const int64_t first = group.members.begin + blocks[block].begin;
      const int64_t size = blocks[block].size();
      for (int64_t unit = run.begin; unit < run.end; ++unit) {
        for (int half = 0; half < kUnitPanels && unit * kUnitPanels + half < num_panels; ++half) {
          const int64_t index = unit * kUnitPanels + half;
          gate.multiply(group.expert, index, gate_rows.data() + first, size, gates);
          up.multiply(group.expert, index, up_rows.data() + first, size, ups);
          kernels.silu_mul(gates, ups, size * kPanelRows, gates);
          for (int64_t token = 0; token < size; ++token) {
            std::copy_n(gates + token * kPanelRows, kPanelRows, unit_values[token] + half * kPanelRows);
          }
        }
        for (int64_t token = 0; token < size; ++token) hidden.store(first + token, unit, unit_values[token]);
      }
    }
  });

  // A task owns some columns of the output and walks the experts in ascending order: that fixes the order of
  // the sum.
  const int64_t width = hidden_width();
  const Chunks runs(down.panels_per_head(), panels_per_task(down.panels_per_head(), 1, pool.num_threads()));
  const int64_t down_tokens = tokens_per_block(down);
  pool.parallel_for(num_tokens == 0 ? 0 : runs.count(), [&](int64_t task) {
    const IndexRange run = runs[task];
    const int64_t col_begin = run.begin * kPanelRows;
    const int64_t col_end = std::min(run.end * kPanelRows, width);
    for (int64_t token = 0; token < num_tokens; ++token) {
      std::fill_n(out + token * width + col_begin, col_end - col_begin, 0.0f);
    }
    float products[kMostBlockTokens * kPanelRows];
    for (const Grouping::Group& group : all.groups) {
      const Chunks blocks(group.members.size(), down_tokens);
      for (int64_t block = 0; block < blocks.count(); ++block) {
        const int64_t first = group.members.begin + blocks[block].begin;
        for (int64_t index = run.begin; index < run.end; ++index) {
          down.multiply(group.expert, index, hidden.rows() + first, blocks[block].size(), products);
          const int64_t col = index * kPanelRows;
          const int64_t num_cols = std::min<int64_t>(kPanelRows, width - col);
          for (int64_t i = 0; i < blocks[block].size(); ++i) {
            const size_t member = static_cast<size_t>(first + i);
            float* to = out + all.tokens[member] * width + col;
            for (int64_t k = 0; k < num_cols; ++k)
              to[k] += all.weights[member] * products[i * kPanelRows + k];
          }
        }
      }
    }
  });
}

}  // namespace ballast
