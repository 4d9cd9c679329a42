// Packed experts, split over simulated nodes, compared with unsplit experts.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "cpu/dispatch.h"
#include "moe/experts.h"
#include "numa/split.h"

using ballast::Experts;
using ballast::find_format;
using ballast::find_isa;
using ballast::FormatTraits;
using ballast::IndexRange;
using ballast::kAnyCpu;
using ballast::Kernels;
using ballast::Matrix;
using ballast::PanelTarget;
using ballast::Placement;
using ballast::split_among_nodes;
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

// Valid blocks of a format: any bytes, except for scales, which must be finite.
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
    // Half-precision scales of about 0.05: at the start of a block (Q4_K also its second scale); in Q6_K at
    // the end.
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

  static Matrix matrix(const std::vector<uint8_t>& data, int type, int64_t rows, int64_t cols) {
    return Matrix(data.data(), static_cast<int64_t>(data.size()), type, rows, cols);
  }
  Matrix down_matrix() const { return matrix(down, down_type, num_experts * hidden, width); }
  Experts in_place() const {
    return Experts(matrix(gate, gate_type, num_experts * width, hidden),
                   matrix(up, gate_type, num_experts * width, hidden), down_matrix(), num_experts);
  }
  // For each expert, the rows of gate, then those of up.
  std::vector<uint8_t> fused() const {
    std::vector<uint8_t> both;
    const int64_t bytes = static_cast<int64_t>(gate.size()) / num_experts;
    for (int64_t expert = 0; expert < num_experts; ++expert) {
      for (const auto* part : {&gate, &up}) {
        both.insert(both.end(), part->begin() + expert * bytes, part->begin() + (expert + 1) * bytes);
      }
    }
    return both;
  }
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

  std::vector<float> through(const Experts& experts, ThreadPool& pool) const {
    std::vector<float> out(static_cast<size_t>(num_tokens * experts.hidden_width()), NAN);
    experts.forward(pool, x.data(), num_tokens, ids.data(), weights.data(), num_chosen, out.data());
    return out;
  }
};

// Float sums in another order differ by a few roundings of the largest partial sum.
bool close(const std::vector<float>& a, const std::vector<float>& b, float tolerance) {
  float largest = 0;
  for (float value : b) largest = std::max(largest, std::fabs(value));
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::fabs(a[i] - b[i]) <= tolerance * largest)) return false;
  }
  return a.size() == b.size();
}

std::vector<PanelTarget> targets() {
  std::vector<PanelTarget> all;
  for (const std::string& isa : ballast::usable_isas()) {
    if (const Kernels* kernels = find_isa(isa)) {
      for (int activation_bytes : {1, 2}) all.push_back({*kernels, activation_bytes});
    }
  }
  return all;
}

int64_t node_bytes(const Experts& experts, int node) {
  int64_t bytes = 0;
  for (const Experts::Part& part : experts.parts()) {
    if (part.node == node) bytes += part.gate->num_bytes() + part.up->num_bytes() + part.down->num_bytes();
  }
  return bytes;
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

TEST(experts_split_over_nodes_match_one_node) {
  const Layer layers[] = {
      {5, 64, 96, kF32, kF32},
      {5, 64, 77, kF32, kF32},
      {5, 64, 96, kQ8_0, kQ4_0},
      {3, 256, 512, kQ4_K, kQ6_K},
      {3, 256, 1280, kQ4_K, kQ8_0},
      {3, 256, 1408, kQ4_K, kQ8_0}};  // a part would use larger rounding groups than the whole
  ThreadPool one(2);
  for (const Layer& layer : layers) {
    std::vector<Tokens> batches;
    std::vector<std::vector<float>> in_place;
    // Wide layers are about the division of columns, which is the same for any number of tokens.
    const bool is_wide = layer.width > 1000;
    for (int64_t num_tokens : is_wide ? std::vector<int64_t>{1, 7} : std::vector<int64_t>{0, 1, 2, 7, 33}) {
      batches.emplace_back(layer, num_tokens, 2);
      in_place.push_back(batches.back().through(layer.in_place(), one));
    }
    for (const PanelTarget& target : targets()) {
      const Experts whole = layer.in_place().packed(one, target);
      const float rounding = layer.gate_type == kF32 ? 1e-5f : target.activation_bytes == 1 ? 2e-2f : 1e-4f;
      std::vector<std::vector<float>> on_one_node;
      for (const Tokens& tokens : batches) on_one_node.push_back(tokens.through(whole, one));
      for (const std::vector<int>& threads : {std::vector<int>{1, 1}, {2, 1}, {1, 1, 1, 1}}) {
        ThreadPool pool(made_up(threads));
        const Experts split = layer.in_place().packed(pool, target);
        for (size_t batch = 0; batch < batches.size(); ++batch) {
          const std::vector<float> out = batches[batch].through(split, pool);
          EXPECT(close(out, on_one_node[batch], 1e-5f));
          EXPECT(close(out, in_place[batch], rounding));
        }
      }
    }
  }
}

TEST(every_node_holds_its_shard_and_no_byte_twice) {
  const Layer layer(3, 256, 1024, kQ4_K, kQ4_K);
  for (const PanelTarget& target : targets()) {
    ThreadPool one(1);
    const int64_t whole = node_bytes(layer.in_place().packed(one, target), 0);
    ThreadPool pool(made_up({1, 1, 1, 1}));
    const Experts split = layer.in_place().packed(pool, target);
    for (int node = 0; node < 4; ++node) EXPECT_EQ(node_bytes(split, node) * 4, whole);
    EXPECT_EQ(split.parts()[3].kernel_node, 3);
  }
}

TEST(a_split_result_is_reproducible_in_any_batch) {
  const Layer layer(4, 64, 352, kQ8_0, kQ4_0);
  for (const PanelTarget& target : targets()) {
    ThreadPool pool(made_up({2, 2}));
    const Experts split = layer.in_place().packed(pool, target);
    EXPECT_EQ(split.parts().size(), size_t{2});
    const Tokens tokens(layer, 16, 2);
    const std::vector<float> first = tokens.through(split, pool);
    for (int round = 0; round < 20; ++round) EXPECT(tokens.through(split, pool) == first);
    std::vector<float> alone(static_cast<size_t>(layer.hidden));
    split.forward(pool, tokens.x.data() + 5 * layer.hidden, 1, tokens.ids.data() + 10,
                  tokens.weights.data() + 10, 2, alone.data());
    EXPECT(std::equal(alone.begin(), alone.end(), first.begin() + 5 * layer.hidden));
  }
}

TEST(concurrent_calls_give_the_bits_of_sequential_ones) {
  const Layer many(5, 256, 512, kQ4_K, kQ8_0);
  const Layer single(1, 256, 1024, kQ8_0, kQ4_K);  // uses the same rounded activations
  const Layer floats(1, 256, 64, kF32, kF32);      // uses them without rounding
  const Tokens tokens(many, 19, 2);
  const std::vector<int32_t> zeros(19, 0), nobody(19, -1);
  const std::vector<float> ones(19, 1.0f);
  const auto alone = [&](const Experts& experts, ThreadPool& pool) {
    std::vector<float> out(19 * 256, NAN);
    experts.forward(pool, tokens.x.data(), 19, zeros.data(), ones.data(), 1, out.data());
    return out;
  };
  const Experts unpacked = single.in_place();
  ThreadPool one(1);
  const std::vector<float> of_unpacked = alone(unpacked, one);
  for (const PanelTarget& target : targets()) {
    for (const std::vector<int>& threads : {std::vector<int>{3}, {2, 1}}) {
      ThreadPool pool(made_up(threads));
      const Experts routed = many.in_place().packed(pool, target);
      const Experts every_token = single.in_place().packed(pool, target);
      const Experts of_floats = floats.in_place().packed(pool, target);
      std::vector<std::vector<float>> outs(6, std::vector<float>(19 * 256, NAN));
      const std::vector<int64_t> num_read =
          Experts::forward_all(pool, tokens.x.data(), 19,
                               {{&routed, tokens.ids.data(), tokens.weights.data(), 2, outs[0].data()},
                                {&every_token, zeros.data(), ones.data(), 1, outs[1].data()},
                                {&routed, nobody.data(), ones.data(), 1, outs[2].data()},
                                {&unpacked, zeros.data(), ones.data(), 1, outs[3].data()},
                                {&of_floats, zeros.data(), ones.data(), 1, outs[4].data()},
                                {&every_token, zeros.data(), ones.data(), 1, outs[5].data()}});
      EXPECT(num_read == (std::vector<int64_t>{5, 1, 0, 1, 1, 1}));
      EXPECT_EQ(every_token.uses()[0], 2 * 19);
      EXPECT(outs[0] == tokens.through(routed, pool));
      EXPECT(outs[1] == alone(every_token, pool));
      EXPECT(outs[2] == std::vector<float>(19 * 256, 0.0f));
      EXPECT(outs[3] == of_unpacked);
      EXPECT(outs[4] == alone(of_floats, pool));
      EXPECT(outs[5] == outs[1]);
    }
  }
  EXPECT(Experts::forward_all(one, tokens.x.data(), 19, {}).empty());
}

TEST(a_node_without_a_unit_holds_and_computes_nothing) {
  const Layer layer(2, 256, 256, kQ4_K, kQ4_K);
  for (const PanelTarget& target : targets()) {
    ThreadPool one(1);
    ThreadPool pool(made_up({1, 1}));
    const Experts split = layer.in_place().packed(pool, target);
    EXPECT(node_bytes(split, 0) > 0);
    EXPECT_EQ(node_bytes(split, 1), 0);
    const Tokens tokens(layer, 3, 2);
    EXPECT(tokens.through(split, pool) == tokens.through(layer.in_place().packed(one, target), one));
  }
}

TEST(gate_and_up_in_one_matrix_give_the_same_bits) {
  const Layer layer(3, 64, 96, kQ8_0, kQ8_0);
  const std::vector<uint8_t> both = layer.fused();
  const Experts fused(Layer::matrix(both, kQ8_0, 3 * 2 * 96, 64), layer.down_matrix(), 3);
  const Tokens tokens(layer, 9, 3);
  ThreadPool pool(made_up({1, 1}));
  EXPECT(tokens.through(fused, pool) == tokens.through(layer.in_place(), pool));
  for (const PanelTarget& target : targets()) {
    EXPECT(tokens.through(fused.packed(pool, target), pool) ==
           tokens.through(layer.in_place().packed(pool, target), pool));
  }
}

TEST(mismatched_matrices_are_rejected) {
  const Layer layer(2, 64, 96, kQ8_0, kQ8_0);
  ThreadPool pool(made_up({1, 1}));
  const Matrix gate = Layer::matrix(layer.gate, kQ8_0, 2 * 96, 64);
  EXPECT_THROWS(Experts(gate, gate, layer.down_matrix(), 3), std::invalid_argument);
  EXPECT_THROWS(Experts(gate, layer.down_matrix(), 2), std::invalid_argument);
  EXPECT_THROWS(Experts(gate, gate, layer.down_matrix(), 0), std::invalid_argument);
  const std::vector<float> x(64, 1.0f);
  const int32_t id = 2;
  const float weight = 1.0f;
  std::vector<float> out(64);
  for (const PanelTarget& target : targets()) {
    const Experts split = layer.in_place().packed(pool, target);
    EXPECT_THROWS(split.forward(pool, x.data(), 1, &id, &weight, 1, out.data()), std::out_of_range);
  }
}
