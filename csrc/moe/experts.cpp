#include "moe/experts.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/index_range.h"
#include "base/scratch.h"
#include "moe/packed_experts.h"
#include "numa/split.h"
#include "ops/pointwise.h"
#include "ops/tile.h"

namespace ballast {
namespace {

std::string shape_of(const Matrix& matrix) {
  return "[" + std::to_string(matrix.rows()) + ", " + std::to_string(matrix.cols()) + "]";
}

void fill_with_zeros(ThreadPool& pool, float* out, int64_t size) {
  constexpr int64_t kTaskFloats = 32768;  // some microseconds; a few tokens are not worth waking a thread
  const Chunks chunks(size, kTaskFloats);
  pool.parallel_for(chunks.count(), [&](int64_t task) {
    const IndexRange range = chunks[task];
    std::fill_n(out + range.begin, range.size(), 0.0f);
  });
}

HeadRows one_each(int64_t num_experts, int64_t num_rows) { return {num_experts, num_rows, 0, num_rows}; }

}  // namespace

Experts::Experts(const Matrix& gate, const Matrix& up, const Matrix& down, int64_t num_experts)
    : Experts({gate, one_each(num_experts, down.cols())}, {up, one_each(num_experts, down.cols())},
              {down, one_each(num_experts, gate.cols())}) {}

Experts::Experts(const Matrix& gate_up, const Matrix& down, int64_t num_experts)
    : Experts({gate_up, {num_experts, 2 * down.cols(), 0, down.cols()}},
              {gate_up, {num_experts, 2 * down.cols(), down.cols(), down.cols()}},
              {down, one_each(num_experts, gate_up.cols())}) {}

Experts::Experts(const ExpertMatrices& gate, const ExpertMatrices& up, const ExpertMatrices& down)
    : gate_(gate), up_(up), down_(down) {
  require(num_experts() >= 1, "num_experts is " + std::to_string(num_experts()) + "; expected 1 or more");
  uses_ = std::make_shared<std::vector<std::atomic<int64_t>>>(static_cast<size_t>(num_experts()));
  const std::string with = " with " + std::to_string(num_experts()) + " experts";
  const auto check = [&](const char* name, const ExpertMatrices& part) {
    require(part.matrix.panels() == nullptr,
            std::string(name) + " is packed; expected it where it lies: pack the experts instead");
    require(part.matrix.rows() == num_experts() * part.rows.stride && part.matrix.cols() == hidden_width(),
            name + (" is " + shape_of(part.matrix)) + "; expected [experts * " +
                std::to_string(part.rows.stride) + ", " + std::to_string(hidden_width()) + "]" + with +
                " (down has " + std::to_string(expert_width()) + " columns)");
  };
  const auto check_scales = [&](const char* name, const ExpertMatrices& part) {
    const int64_t count = part.matrix.num_scales();
    require(count <= 1 || count == num_experts(), std::string(name) + " has " + std::to_string(count) +
                                                      " scales; expected one, or as many as experts" + with);
  };
  check_scales("gate", gate_);
  check_scales("up", up_);
  check_scales("down", down_);
  check("gate", gate_);
  check("up", up_);
  require(down_.matrix.panels() == nullptr,
          "down is packed; expected it where it lies: pack the experts instead");
  require(down_.matrix.rows() == num_experts() * hidden_width(),
          "down is " + shape_of(down_.matrix) + "; expected " +
              std::to_string(num_experts() * hidden_width()) + " rows, experts times gate's columns");
}

Experts Experts::with_biases(ExpertBiases biases) const {
  const auto check = [&](const char* name, const std::vector<float>& bias, int64_t width) {
    require(static_cast<int64_t>(bias.size()) == num_experts() * width,
            std::string("the bias of ") + name + " has " + std::to_string(bias.size()) +
                " entries; expected " + std::to_string(num_experts()) + " * " + std::to_string(width));
  };
  check("gate", biases.gate, expert_width());
  check("up", biases.up, expert_width());
  check("down", biases.down, hidden_width());
  Experts copy = *this;
  copy.biases_ = std::make_shared<const ExpertBiases>(std::move(biases));
  return copy;
}

Experts Experts::with_unit(const ClampedUnit& unit) const {
  Experts copy = *this;
  copy.unit_ = unit;
  return copy;
}

int64_t Experts::expert_bytes() const {
  const auto bytes = [](const ExpertMatrices& part) { return part.rows.num_rows * part.matrix.row_bytes(); };
  return bytes(gate_) + bytes(up_) + bytes(down_);
}

std::vector<IndexRange> ranges_by_node(const FormatTraits& down, int64_t width,
                                       const std::vector<int>& threads_per_node) {
  const bool is_quantized = down.block_weights > 1;
  const int64_t rounded_together = (is_quantized ? blocks_per_scale(width) : 1) * kGroupCols;
  return split_among_nodes(width, std::max<int64_t>(down.block_weights, rounded_together), threads_per_node);
}

std::array<Matrix, 3> Experts::matrices(const Part& part) const {
  return {gate_.matrix.of_panels(part.gate), up_.matrix.of_panels(part.up),
          down_.matrix.of_panels(part.down)};
}

int64_t Experts::forward(ThreadPool& pool, const float* x, int64_t num_tokens, const int32_t* ids,
                         const float* weights, int64_t num_chosen, float* out) const {
  return forward_all(pool, x, num_tokens, {{this, ids, weights, num_chosen, out}})[0];
}

std::vector<int64_t> Experts::forward_all(ThreadPool& pool, const float* x, int64_t num_tokens,
                                          const std::vector<Call>& calls) {
  std::vector<Grouping> groupings;
  for (const Call& call : calls) {
    BALLAST_CHECK(call.experts->hidden_width() == calls[0].experts->hidden_width());
    groupings.push_back(
        group_by_expert(call.ids, call.weights, num_tokens, call.num_chosen, call.experts->num_experts()));
  }
  std::vector<int64_t> num_read;
  std::vector<PackedCall> packed;
  for (size_t i = 0; i < calls.size(); ++i) {
    const Experts& experts = *calls[i].experts;
    float* const out = calls[i].out;
    const Grouping& all = groupings[i];
    num_read.push_back(static_cast<int64_t>(all.groups.size()));
    if (all.groups.empty()) {
      fill_with_zeros(pool, out, num_tokens * experts.hidden_width());
    } else if (!experts.parts_.empty()) {
      BALLAST_CHECK(pool.num_nodes() == experts.num_nodes_);
      packed.push_back({&experts, &all, out});
    } else {
      experts.forward_in_place(pool, x, num_tokens, all, out);
    }
    for (const Grouping::Group& group : all.groups) {
      (*experts.uses_)[static_cast<size_t>(group.expert)].fetch_add(group.members.size(),
                                                                    std::memory_order_relaxed);
    }
  }
  if (!packed.empty()) forward_packed(pool, x, num_tokens, packed);
  return num_read;
}

void Experts::forward_in_place(ThreadPool& pool, const float* x, int64_t num_tokens, const Grouping& all,
                               float* out) const {
  const int64_t hidden = hidden_width();
  const int64_t width = expert_width();
  const auto biased = [&](float product, std::vector<float> ExpertBiases::* part, int64_t index) {
    return biases_ == nullptr ? product : product + ((*biases_).*part)[static_cast<size_t>(index)];
  };
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
    const auto rows_of = [&](const ExpertMatrices& part) {
      const int64_t begin = part.rows.begin(group.expert);
      return IndexRange{begin + tile.begin, begin + tile.end};
    };
    const int64_t size = group.members.size();
    float* activation = activations.data() + group.members.begin * width + tile.begin;
    const float* const* tokens = inputs.data() + group.members.begin;
    const Scales scale = scales(group.expert);
    const Scratch<float> scratch(kTileRows * hidden);
    float* buffer = scratch.get();
    dequantize_rows(gate_.matrix, rows_of(gate_), buffer);
    const int64_t first = group.expert * width + tile.begin;  // of the biases
    multiply_tile(buffer, tile.size(), hidden, tokens, size, [&](int64_t token, int64_t row, float product) {
      const float gate = biased(scale.gate * product, &ExpertBiases::gate, first + row);
      activation[token * width + row] = unit_ ? clamped_gate(*unit_, gate) : silu(gate);
    });
    dequantize_rows(up_.matrix, rows_of(up_), buffer);
    multiply_tile(buffer, tile.size(), hidden, tokens, size, [&](int64_t token, int64_t row, float product) {
      const float up = biased(scale.up * product, &ExpertBiases::up, first + row);
      activation[token * width + row] *= unit_ ? clamped_up(*unit_, up) : up;
    });
  });

  // A task owns a few columns of the output and walks the experts in ascending order: that fixes the order of
  // the sum.
  const Chunks down_tiles(hidden, kTileRows);
  pool.parallel_for(down_tiles.count(), [&](int64_t task) {
    const IndexRange tile = down_tiles[task];
    for (int64_t token = 0; token < num_tokens; ++token)
      std::fill_n(out + token * hidden + tile.begin, tile.size(), 0.0f);
    const Scratch<float> scratch(kTileRows * width);
    float* buffer = scratch.get();
    for (const Grouping::Group& group : all.groups) {
      dequantize_rows(down_.matrix, {group.expert * hidden + tile.begin, group.expert * hidden + tile.end},
                      buffer);
      const float scale = down_.matrix.scale(group.expert);
      multiply_tile(buffer, tile.size(), width, activated.data() + group.members.begin, group.members.size(),
                    [&](int64_t member, int64_t row, float product) {
                      const size_t i = static_cast<size_t>(group.members.begin + member);
                      float& sum = out[all.tokens[i] * hidden + tile.begin + row];
                      sum += all.weights[i] * scale * product;
                      if (biases_ == nullptr) return;
                      const int64_t index = group.expert * hidden + tile.begin + row;
                      sum += all.weights[i] * biases_->down[static_cast<size_t>(index)];
                    });
    }
  });
}

}  // namespace ballast
