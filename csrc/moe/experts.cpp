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

// The (token, expert) pairs of a call in order of expert, then token.
struct Assignments {
  struct Group {
    int64_t expert;
    IndexRange members;
  };
  std::vector<Group> groups;    // one a chosen expert, ascending
  std::vector<int64_t> tokens;  // [assignments]
  std::vector<float> weights;   // [assignments]
};

Assignments group_by_expert(const int32_t* ids, const float* weights, int64_t num_tokens, int64_t num_chosen,
                            int64_t num_experts) {
  const int64_t num_assignments = num_tokens * num_chosen;
  std::vector<int64_t> ends(static_cast<size_t>(num_experts), 0);
  for (int64_t i = 0; i < num_assignments; ++i) {
    if (ids[i] < 0 || ids[i] >= num_experts) {
      throw std::out_of_range("ids[" + std::to_string(i / num_chosen) + ", " +
                              std::to_string(i % num_chosen) + "] is " + std::to_string(ids[i]) +
                              "; expected 0 to " + std::to_string(num_experts - 1));
    }
    ++ends[static_cast<size_t>(ids[i])];
  }
  Assignments all;
  all.tokens.resize(static_cast<size_t>(num_assignments));
  all.weights.resize(static_cast<size_t>(num_assignments));
  int64_t begin = 0;
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    const int64_t size = ends[static_cast<size_t>(expert)];
    if (size > 0) all.groups.push_back({expert, {begin, begin + size}});
    ends[static_cast<size_t>(expert)] = begin;  // from here on the end of what has been placed
    begin += size;
  }
  for (int64_t i = 0; i < num_assignments; ++i) {
    const size_t place = static_cast<size_t>(ends[static_cast<size_t>(ids[i])]++);
    all.tokens[place] = i / num_chosen;
    all.weights[place] = weights[i];
  }
  return all;
}

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
}

void Experts::forward(ThreadPool& pool, const float* x, int64_t num_tokens, const int32_t* ids,
                      const float* weights, int64_t num_chosen, float* out) const {
  const Assignments all = group_by_expert(ids, weights, num_tokens, num_chosen, num_experts_);
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
    const Assignments::Group& group = all.groups[static_cast<size_t>(task / up_tiles.count())];
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
    for (const Assignments::Group& group : all.groups) {
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
