#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "moe/experts.h"
#include "moe/split_experts.h"
#include "numa/split.h"

using ballast::Experts;
using ballast::find_format;
using ballast::FormatTraits;
using ballast::IndexRange;
using ballast::kAnyCpu;
using ballast::Matrix;
using ballast::Placement;
using ballast::split_among_nodes;
using ballast::SplitExperts;
using ballast::StackedBlocks;
using ballast::ThreadPool;

namespace {

constexpr int kF32 = 0, kQ4_0 = 2, kQ8_0 = 8, kQ4_K = 12, kQ6_K = 14;

Placement made_up(std::vector<int> threads_per_node) {
  Placement placement;
  for (int threads : threads_per_node) {
    const int node = static_cast<int>(placement.nodes.size());
    placement.nodes.push_back({node, std::vector<int>(static_cast<size_t>(threads), kAnyCpu)});
  }
  return placement;
}

// Valid blocks of a format: any bytes are, but for scales that are no numbers.
std::vector<uint8_t> random_blocks(int ggml_type, int64_t num_weights, uint32_t seed) {
  const FormatTraits& format = *find_format(ggml_type);
  std::mt19937 random(seed);
  std::vector<uint8_t> data(static_cast<size_t>(num_weights / format.block_weights * format.block_bytes));
  if (ggml_type == kF32) {
    std::normal_distribution<float> normal;
    for (size_t at = 0; at < data.size(); at += 4) {
      const float value = normal(random);
      std::memcpy(data.data() + at, &value, 4);
    }
    return data;
  }
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  const size_t block = static_cast<size_t>(format.block_bytes);
  for (size_t at = 0; at < data.size(); at += block) {
    // Half-precision scales, 0.5 or so: at the block's begin, and its second in Q4_K; at the end in Q6_K.
    const size_t scale = ggml_type == kQ6_K ? at + block - 2 : at;
    data[scale + 1] = 0x2c;
    if (ggml_type == kQ4_K) data[at + 3] = 0x2c;
  }
  return data;
}

struct Layer {
  int64_t num_experts, hidden, width;
  int gate_type, down_type;
  std::vector<uint8_t> gate, up, down;

  Layer(int64_t experts, int64_t d, int64_t i, int gate_format, int down_format)
      : num_experts(experts),
        hidden(d),
        width(i),
        gate_type(gate_format),
        down_type(down_format),
        gate(random_blocks(gate_type, experts * i * d, 1)),
        up(random_blocks(gate_type, experts * i * d, 2)),
        down(random_blocks(down_type, experts * d * i, 3)) {}

  static StackedBlocks blocks(const std::vector<uint8_t>& data, int type) {
    return {data.data(), static_cast<int64_t>(data.size()), type};
  }
  static Matrix matrix(const std::vector<uint8_t>& data, int type, int64_t rows, int64_t cols) {
    return Matrix(data.data(), static_cast<int64_t>(data.size()), type, rows, cols);
  }
  Experts whole() const {
    return Experts(matrix(gate, gate_type, num_experts * width, hidden),
                   matrix(up, gate_type, num_experts * width, hidden),
                   matrix(down, down_type, num_experts * hidden, width), num_experts);
  }
  SplitExperts split(ThreadPool& pool) const {
    return SplitExperts(pool, blocks(gate, gate_type), blocks(up, gate_type), blocks(down, down_type),
                        num_experts, hidden, width);
  }
  int64_t num_bytes() const { return static_cast<int64_t>(gate.size() + up.size() + down.size()); }
};

struct Tokens {
  int64_t num_tokens, num_chosen;
  std::vector<float> x, weights;
  std::vector<int32_t> ids;

  Tokens(const Layer& layer, int64_t tokens, int64_t chosen) : num_tokens(tokens), num_chosen(chosen) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < tokens * layer.hidden; ++i) x.push_back(normal(random) / 16);
    for (int64_t i = 0; i < tokens * chosen; ++i) {
      ids.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(layer.num_experts)));
      weights.push_back(0.1f + static_cast<float>(random() % 100) / 100);
    }
  }

  template <class Layers>
  std::vector<float> through(const Layers& experts, ThreadPool& pool, const Layer& layer) const {
    std::vector<float> out(static_cast<size_t>(num_tokens * layer.hidden), NAN);
    experts.forward(pool, x.data(), num_tokens, ids.data(), weights.data(), num_chosen, out.data());
    return out;
  }
};

// Sums of floats in another order differ by a few roundings of the largest partial sum.
bool close(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0;
  for (float value : b) largest = std::max(largest, std::fabs(value));
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::fabs(a[i] - b[i]) <= 1e-5f * largest)) return false;
  }
  return a.size() == b.size();
}

}  // namespace

TEST(ranges_cover_the_dimension_in_whole_units_and_in_order) {
  for (int64_t total : {0, 31, 32, 256, 1408, 2048}) {
    for (int64_t unit : {1, 32, 256}) {
      for (const std::vector<int>& threads : {std::vector<int>{4}, {1, 1}, {3, 1}, {2, 2, 2, 2}}) {
        int64_t next = 0;
        for (const IndexRange& range : split_among_nodes(total, unit, threads)) {
          EXPECT_EQ(range.begin, next);
          EXPECT(range.size() >= 0 && (range.end % unit == 0 || range.end == total));
          next = range.end;
        }
        EXPECT_EQ(next, total);
      }
    }
  }
  EXPECT_EQ(split_among_nodes(2048, 256, {3, 1})[0].size(), 1536);
}

TEST(experts_split_over_nodes_give_what_one_node_gives) {
  const Layer layers[] = {{5, 64, 96, kF32, kF32},
                          {5, 64, 96, kQ8_0, kQ4_0},
                          {3, 256, 512, kQ4_K, kQ6_K},
                          {3, 256, 1280, kQ4_K, kQ8_0}};
  ThreadPool one(2);
  for (const Layer& layer : layers) {
    const Experts whole = layer.whole();
    for (const std::vector<int>& threads : {std::vector<int>{2}, {1, 1}, {2, 1}, {1, 1, 1, 1}}) {
      ThreadPool pool(made_up(threads));
      const SplitExperts split = layer.split(pool);
      int64_t bytes = 0;
      for (int node = 0; node < pool.num_nodes(); ++node) bytes += split.node_bytes(node);
      EXPECT_EQ(bytes, layer.num_bytes());
      for (int64_t num_tokens : {0, 1, 2, 7, 33}) {
        const Tokens tokens(layer, num_tokens, 2);
        const std::vector<float> expected = tokens.through(whole, one, layer);
        EXPECT(close(tokens.through(split, pool, layer), expected));
      }
    }
  }
}

TEST(one_node_alone_gives_the_very_same_bits) {
  const Layer layer(4, 64, 96, kQ8_0, kQ8_0);
  ThreadPool pool(made_up({3}));
  const Tokens tokens(layer, 9, 3);
  EXPECT(tokens.through(layer.split(pool), pool, layer) == tokens.through(layer.whole(), pool, layer));
}

TEST(a_split_result_is_the_same_every_time_and_whatever_else_is_in_the_batch) {
  const Layer layer(4, 64, 128, kQ8_0, kQ4_0);
  ThreadPool pool(made_up({2, 2}));
  const SplitExperts split = layer.split(pool);
  const Tokens tokens(layer, 16, 2);
  const std::vector<float> first = tokens.through(split, pool, layer);
  for (int round = 0; round < 20; ++round) EXPECT(tokens.through(split, pool, layer) == first);
  std::vector<float> alone(static_cast<size_t>(layer.hidden));
  split.forward(pool, tokens.x.data() + 5 * layer.hidden, 1, tokens.ids.data() + 10,
                tokens.weights.data() + 10, 2, alone.data());
  EXPECT(std::equal(alone.begin(), alone.end(), first.begin() + 5 * layer.hidden));
}

TEST(a_node_without_a_unit_of_its_own_holds_and_computes_nothing) {
  const Layer layer(2, 256, 256, kQ4_K, kQ4_K);
  ThreadPool pool(made_up({1, 1}));
  const SplitExperts split = layer.split(pool);
  EXPECT_EQ(split.node_bytes(0), layer.num_bytes());
  EXPECT_EQ(split.node_bytes(1), 0);
  const Tokens tokens(layer, 3, 2);
  EXPECT(close(tokens.through(split, pool, layer), tokens.through(layer.whole(), pool, layer)));
}

TEST(what_does_not_fit_is_refused) {
  const Layer layer(2, 64, 96, kQ8_0, kQ8_0);
  ThreadPool pool(made_up({1, 1}));
  EXPECT_THROWS(SplitExperts(pool, Layer::blocks(layer.gate, kQ8_0), Layer::blocks(layer.up, kQ8_0),
                             Layer::blocks(layer.down, kQ8_0), 3, 64, 96),
                std::invalid_argument);
  const SplitExperts split = layer.split(pool);
  const std::vector<float> x(64, 1.0f);
  const int32_t id = 2;
  const float weight = 1.0f;
  std::vector<float> out(64);
  EXPECT_THROWS(split.forward(pool, x.data(), 1, &id, &weight, 1, out.data()), std::out_of_range);
}
