#include "moe/split_experts.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "base/check.h"
#include "numa/split.h"
#include "ops/norm.h"
#include "ops/tile.h"

namespace ballast {
namespace {

// The tokens of one chosen expert.
struct Members {
  int64_t expert;
  std::vector<int64_t> tokens;
  std::vector<float> weights;
  int64_t first;  // members of the experts before it
};

std::vector<Members> members_by_expert(const int32_t* ids, const float* weights, int64_t num_tokens,
                                       int64_t num_chosen, int64_t num_experts) {
  std::vector<Members> all(static_cast<size_t>(num_experts));
  for (int64_t i = 0; i < num_tokens * num_chosen; ++i) {
    if (ids[i] < 0 || ids[i] >= num_experts) {
      throw std::out_of_range("ids[" + std::to_string(i / num_chosen) + ", " +
                              std::to_string(i % num_chosen) + "] is " + std::to_string(ids[i]) +
                              "; expected 0 to " + std::to_string(num_experts - 1));
    }
    Members& members = all[static_cast<size_t>(ids[i])];
    members.tokens.push_back(i / num_chosen);
    members.weights.push_back(weights[i]);
  }
  std::vector<Members> chosen;
  int64_t first = 0;
  for (size_t expert = 0; expert < all.size(); ++expert) {
    if (all[expert].tokens.empty()) continue;
    chosen.push_back(std::move(all[expert]));
    chosen.back().expert = static_cast<int64_t>(expert);
    chosen.back().first = first;
    first += static_cast<int64_t>(chosen.back().tokens.size());
  }
  return chosen;
}

const FormatTraits& checked_format(const char* name, const StackedBlocks& blocks, int64_t rows,
                                   int64_t cols) {
  // Matrix knows what fits and says what does not.
  try {
    return Matrix(blocks.data, blocks.num_bytes, blocks.ggml_type, rows, cols).format();
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string(name) + ": " + error.what());
  }
}

int64_t bytes_of(const FormatTraits& format, int64_t num_weights) {
  return num_weights / format.block_weights * format.block_bytes;
}

// Rows of `bytes` from `stride` apart, one after another into the node's memory, by the node's threads.
std::unique_ptr<NodePages> gather(ThreadPool& pool, int node, const uint8_t* from, int64_t num_rows,
                                  int64_t stride, int64_t bytes) {
  auto pages = std::make_unique<NodePages>(pool, node, static_cast<size_t>(num_rows * bytes));
  std::vector<int64_t> counts(static_cast<size_t>(pool.num_nodes()), 0);
  counts[static_cast<size_t>(node)] = num_rows;
  pool.parallel_for_nodes(counts, [&](int, int64_t row) {
    std::memcpy(pages->data() + row * bytes, from + row * stride, static_cast<size_t>(bytes));
  });
  return pages;
}

Matrix matrix_over(const NodePages& pages, int ggml_type, int64_t rows, int64_t cols) {
  return Matrix(pages.data(), static_cast<int64_t>(pages.size()), ggml_type, rows, cols);
}

}  // namespace

SplitExperts::SplitExperts(ThreadPool& pool, const StackedBlocks& gate, const StackedBlocks& up,
                           const StackedBlocks& down, int64_t num_experts, int64_t hidden, int64_t width)
    : num_experts_(num_experts), hidden_(hidden) {
  const FormatTraits& gate_format = checked_format("gate", gate, num_experts * width, hidden);
  const FormatTraits& up_format = checked_format("up", up, num_experts * width, hidden);
  const FormatTraits& down_format = checked_format("down", down, num_experts * hidden, width);
  const int64_t gate_row = bytes_of(gate_format, hidden), up_row = bytes_of(up_format, hidden);
  const int64_t down_row = bytes_of(down_format, width);
  const std::vector<IndexRange> ranges =
      split_among_nodes(width, down_format.block_weights, pool.threads_per_node());
  for (int node = 0; node < pool.num_nodes(); ++node) {
    const IndexRange range = ranges[static_cast<size_t>(node)];
    Part part{range.size(), nullptr, nullptr, nullptr, {}};
    if (range.size() > 0) {
      // An expert's rows of a node lie together: as far as copying goes they are one row.
      part.gate_pages = gather(pool, node, gate.data + range.begin * gate_row, num_experts, width * gate_row,
                               range.size() * gate_row);
      part.up_pages = gather(pool, node, up.data + range.begin * up_row, num_experts, width * up_row,
                             range.size() * up_row);
      part.down_pages = gather(pool, node, down.data + bytes_of(down_format, range.begin),
                               num_experts * hidden, down_row, bytes_of(down_format, range.size()));
      part.gate_up_down = {matrix_over(*part.gate_pages, gate.ggml_type, num_experts * range.size(), hidden),
                           matrix_over(*part.up_pages, up.ggml_type, num_experts * range.size(), hidden),
                           matrix_over(*part.down_pages, down.ggml_type, num_experts * hidden, range.size())};
    }
    parts_.push_back(std::move(part));
  }
}

void SplitExperts::forward(ThreadPool& pool, const float* x, int64_t num_tokens, const int32_t* ids,
                           const float* weights, int64_t num_chosen, float* out) const {
  BALLAST_CHECK(static_cast<size_t>(pool.num_nodes()) == parts_.size());
  const std::vector<Members> chosen = members_by_expert(ids, weights, num_tokens, num_chosen, num_experts_);
  const size_t num_members = static_cast<size_t>(num_tokens * num_chosen);
  // By node: activations [members, its part of I], partial sums [T, D].
  std::vector<std::vector<float>> activations, partials;
  std::vector<int64_t> up_counts, down_counts;
  const Chunks down_tiles(hidden_, kTileRows);
  for (const Part& part : parts_) {
    activations.emplace_back(num_members * static_cast<size_t>(part.width));
    partials.emplace_back(static_cast<size_t>(num_tokens * hidden_), 0.0f);
    up_counts.push_back(static_cast<int64_t>(chosen.size()) * Chunks(part.width, kTileRows).count());
    down_counts.push_back(part.width > 0 ? down_tiles.count() : 0);
  }

  pool.parallel_for_nodes(up_counts, [&](int node, int64_t task) {
    const Part& part = parts_[static_cast<size_t>(node)];
    const Chunks tiles(part.width, kTileRows);
    const Members& members = chosen[static_cast<size_t>(task / tiles.count())];
    const IndexRange tile = tiles[task % tiles.count()];
    const IndexRange rows{members.expert * part.width + tile.begin, members.expert * part.width + tile.end};
    const int64_t size = static_cast<int64_t>(members.tokens.size());
    std::vector<const float*> inputs;
    for (int64_t token : members.tokens) inputs.push_back(x + token * hidden_);
    float* activation =
        activations[static_cast<size_t>(node)].data() + members.first * part.width + tile.begin;
    float* buffer = row_buffer(kTileRows * hidden_);
    dequantize_rows(part.gate(), rows, buffer);
    multiply_tile(buffer, tile.size(), hidden_, inputs.data(), size,
                  [&](int64_t i, int64_t row, float gate) { activation[i * part.width + row] = silu(gate); });
    dequantize_rows(part.up(), rows, buffer);
    multiply_tile(buffer, tile.size(), hidden_, inputs.data(), size,
                  [&](int64_t i, int64_t row, float up) { activation[i * part.width + row] *= up; });
  });

  pool.parallel_for_nodes(down_counts, [&](int node, int64_t task) {
    const Part& part = parts_[static_cast<size_t>(node)];
    const IndexRange tile = down_tiles[task];
    float* partial = partials[static_cast<size_t>(node)].data();
    float* buffer = row_buffer(kTileRows * part.width);
    for (const Members& members : chosen) {
      std::vector<const float*> activated;
      for (size_t i = 0; i < members.tokens.size(); ++i) {
        activated.push_back(activations[static_cast<size_t>(node)].data() +
                            (members.first + static_cast<int64_t>(i)) * part.width);
      }
      const int64_t begin = members.expert * hidden_;
      dequantize_rows(part.down(), {begin + tile.begin, begin + tile.end}, buffer);
      multiply_tile(buffer, tile.size(), part.width, activated.data(), static_cast<int64_t>(activated.size()),
                    [&](int64_t i, int64_t row, float product) {
                      const size_t member = static_cast<size_t>(i);
                      partial[members.tokens[member] * hidden_ + tile.begin + row] +=
                          members.weights[member] * product;
                    });
    }
  });

  pool.parallel_for(num_tokens, [&](int64_t token) {
    float* row = out + token * hidden_;
    std::fill_n(row, hidden_, 0.0f);
    for (const std::vector<float>& partial : partials) {
      for (int64_t i = 0; i < hidden_; ++i) row[i] += partial[static_cast<size_t>(token * hidden_ + i)];
    }
  });
}

int64_t SplitExperts::node_bytes(int node) const {
  int64_t bytes = 0;
  for (const Matrix& matrix : parts_[static_cast<size_t>(node)].gate_up_down) bytes += matrix.num_bytes();
  return bytes;
}

}  // namespace ballast
