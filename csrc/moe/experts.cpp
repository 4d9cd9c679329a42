#include "moe/experts.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "numa/index_range.h"
#include "ops/norm.h"
#include "ops/tile.h"

namespace ballast {
namespace {

void require(bool holds, const std::string& story) {
  if (!holds) throw std::invalid_argument(story);
}

std::string shape_of(const Matrix& matrix) {
  return "[" + std::to_string(matrix.rows()) + ", " + std::to_string(matrix.cols()) + "]";
}

}  // namespace

Experts::Experts(const Matrix& gate, const Matrix& up, const Matrix& down, int64_t num_experts)
    : gate_(gate), up_(up), down_(down), num_experts_(num_experts) {
  require(num_experts >= 1, "num_experts is " + std::to_string(num_experts) + "; expected 1 or more");
  const std::string expected = "expected [experts * " + std::to_string(down.cols()) + ", " +
                               std::to_string(gate.cols()) + "] with " + std::to_string(num_experts) +
                               " experts";
  const auto fits = [&](const Matrix& matrix) {
    return matrix.rows() == num_experts * down.cols() && matrix.cols() == gate.cols();
  };
  require(fits(gate), "gate is " + shape_of(gate) + "; " + expected + " (down's columns)");
  require(fits(up), "up is " + shape_of(up) + "; " + expected + ", as gate");
  require(down.rows() == num_experts * gate.cols(), "down is " + shape_of(down) + "; expected " +
                                                        std::to_string(num_experts * gate.cols()) +
                                                        " rows, experts times gate's columns");
  const auto one_head_each = [&](const Matrix& matrix) {
    const int64_t num_rows = matrix.rows() / num_experts;
    const Panels* panels = matrix.panels();
    return panels != nullptr && panels->heads() == HeadRows{num_experts, num_rows, 0, num_rows} &&
           panels->panel_rows() == PanelRows::kAsStored;
  };
  const bool none_packed = !gate.panels() && !up.panels() && !down.panels();
  require(none_packed || (one_head_each(gate) && one_head_each(up) && one_head_each(down)),
          "gate, up and down must all be packed with one head for each of the " +
              std::to_string(num_experts) + " experts, or none of them packed");
}

void Experts::forward(ThreadPool& pool, const float* x, int64_t num_tokens, const int32_t* ids,
                      const float* weights, int64_t num_chosen, float* out) const {
  const Grouping all = group_by_expert(ids, weights, num_tokens, num_chosen, num_experts_);
  if (gate_.panels() != nullptr) {
    forward_packed(pool, x, num_tokens, all, out);
  } else {
    forward_in_place(pool, x, num_tokens, all, out);
  }
}

void Experts::forward_in_place(ThreadPool& pool, const float* x, int64_t num_tokens, const Grouping& all,
                               float* out) const {
  const int64_t hidden = hidden_width();
  const int64_t width = expert_width();
  std::vector<float> activations(all.tokens.size() * static_cast<size_t>(width));  // [assignments, I]
  std::vector<const float*> inputs;
  std::vector<const float*> activated;
  for (size_t i = 0; i < all.tokens.size(); ++i) {
    inputs.push_back(x + all.tokens[i] * hidden);
    activated.push_back(activations.data() + i * static_cast<size_t>(width));
  }

  const Chunks up_tiles(width, kTileRows);
  pool.parallel_for(static_cast<int64_t>(all.groups.size()) * up_tiles.count(), [&](int64_t task) {
    const Grouping::Group& group = all.groups[static_cast<size_t>(task / up_tiles.count())];
    const IndexRange tile = up_tiles[task % up_tiles.count()];
    const IndexRange rows{group.expert * width + tile.begin, group.expert * width + tile.end};
    const int64_t size = group.members.size();
    float* activation = activations.data() + group.members.begin * width + tile.begin;
    const float* const* tokens = inputs.data() + group.members.begin;
    float* buffer = row_buffer(kTileRows * hidden);
    dequantize_rows(gate_, rows, buffer);
    multiply_tile(buffer, tile.size(), hidden, tokens, size, [&](int64_t token, int64_t row, float gate) {
      activation[token * width + row] = silu(gate);
    });
    dequantize_rows(up_, rows, buffer);
    multiply_tile(buffer, tile.size(), hidden, tokens, size,
                  [&](int64_t token, int64_t row, float up) { activation[token * width + row] *= up; });
  });

  // A task owns a few columns of the output and walks the experts in ascending order: that fixes the order of
  // the sum.
  const Chunks down_tiles(hidden, kTileRows);
  pool.parallel_for(num_tokens == 0 ? 0 : down_tiles.count(), [&](int64_t task) {
    const IndexRange tile = down_tiles[task];
    for (int64_t token = 0; token < num_tokens; ++token)
      std::fill_n(out + token * hidden + tile.begin, tile.size(), 0.0f);
    float* buffer = row_buffer(kTileRows * width);
    for (const Grouping::Group& group : all.groups) {
      dequantize_rows(down_, {group.expert * hidden + tile.begin, group.expert * hidden + tile.end}, buffer);
      multiply_tile(buffer, tile.size(), width, activated.data() + group.members.begin, group.members.size(),
                    [&](int64_t member, int64_t row, float product) {
                      const size_t i = static_cast<size_t>(group.members.begin + member);
                      out[all.tokens[i] * hidden + tile.begin + row] += all.weights[i] * product;
                    });
    }
  });
}

}  // namespace ballast
