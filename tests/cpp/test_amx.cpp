// The AMX kernels compared with the vector kernels: on emulated tiles, and on real ones if the CPU has them.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "base/check.h"
#include "check.h"
#include "cpu/dispatch.h"
#include "emulated_amx.h"
#include "moe/experts.h"
#include "ops/activations.h"
#include "quant/matrix.h"

using namespace ballast;

void ballast::break_tile_rule(const char* rule, int line) { check_failed(rule, "emulated_tiles.h", line); }

namespace {

constexpr int64_t kRows = 37;  // two full tiles and a partial one
constexpr int kQ8_0 = 8, kQ4_K = 12, kQ5_K = 13;
constexpr int kBf16 = 30;
const int64_t kTokens[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 24, 63, 64, 65, 90};
constexpr int64_t kMostTokens = 90;

std::mt19937 random_bits(11);

std::vector<float> random_floats(int64_t num) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(num));
  for (float& value : values) value = normal(random_bits);
  return values;
}

// Blocks of random bits; the results must also match if scales are NaN or infinite.
std::vector<uint8_t> random_blocks(int ggml_type, int64_t rows, int64_t cols) {
  if (ggml_type == kBf16) {
    std::vector<uint8_t> bytes;
    for (const float value : random_floats(rows * cols)) {
      uint8_t raw[4];
      std::memcpy(raw, &value, 4);
      bytes.insert(bytes.end(), raw + 2, raw + 4);
    }
    return bytes;
  }
  for (const FormatTraits& format : all_formats()) {
    if (format.ggml_type != ggml_type) continue;
    std::vector<uint8_t> bytes(static_cast<size_t>(rows * cols / format.block_weights * format.block_bytes));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_bits());
    return bytes;
  }
  return {};
}

bool usable(const std::string& isa) {
  const std::vector<std::string> all = usable_isas();
  return std::find(all.begin(), all.end(), isa) != all.end();
}

std::vector<const Kernels*> tile_kernels() {
  if (!usable("avx512")) {
    std::printf("not run: the AMX kernels, even on emulated tiles, need AVX-512 with VNNI\n");
    return {};
  }
  std::vector<const Kernels*> all{emulated_amx_kernels()};
  if (usable("amx")) {
    all.push_back(find_isa("amx"));
  } else {
    std::printf("not run: real tiles, as this CPU has none; emulated ones stand in\n");
  }
  return all;
}

// kRows random rows, packed.
struct Product {
  Product(ThreadPool& pool, const Kernels& packed_for, int ggml_type, int64_t cols, int num_bytes)
      : data(random_blocks(ggml_type, kRows, cols)),
        source(data.data(), static_cast<int64_t>(data.size()), ggml_type, kRows, cols),
        panels(pool, {packed_for, num_bytes}, source, {1, 0, 0, kRows}, PanelRows::kAsStored) {}

  // [panel][token][16]; the stride exceeds the written floats of a panel.
  std::vector<float> with(const Kernels& kernels, const void* const* tokens, int64_t num_tokens) const {
    const int64_t stride = num_tokens * kPanelRows + 3 * kPanelRows;
    std::vector<float> out(static_cast<size_t>(panels.panels_per_head() * stride), -7.0f);
    kernels.by_bytes[panels.activation_bytes() - 1].multiply[static_cast<int>(panels.kind())](
        panels.run(0, {0, panels.panels_per_head()}), tokens, num_tokens, {out.data(), stride});
    return out;
  }

  // The same with tokens in the kernels' own order.
  std::vector<float> with_arranged(const Kernels& kernels, const void* const* tokens,
                                   int64_t num_tokens) const {
    const TokenOrder& order =
        kernels.by_bytes[panels.activation_bytes() - 1].token_order[static_cast<int>(panels.kind())];
    const int64_t across = (num_tokens + order.bundle_tokens - 1) / order.bundle_tokens + 1;  // one extra
    const int64_t stride = across * order.bundle_bytes;
    const Scratch<uint8_t> bundles(panels.cols() / order.bundle_cols * stride);
    for (int64_t col = 0; col < panels.cols(); col += order.bundle_cols)
      order.arrange(tokens, num_tokens, col / kGroupCols, bundles.get() + col / order.bundle_cols * stride);
    const int64_t panel_stride = num_tokens * kPanelRows + 3 * kPanelRows;
    std::vector<float> out(static_cast<size_t>(panels.panels_per_head() * panel_stride), -7.0f);
    order.multiply(panels.run(0, {0, panels.panels_per_head()}), {bundles.get(), stride}, tokens, num_tokens,
                   {out.data(), panel_stride});
    return out;
  }

  const std::vector<uint8_t> data;
  const Matrix source;
  const Panels panels;
};

// Matrices of stacked experts, with small scales.
struct Stack {
  Stack(int ggml_type, int64_t num_rows, int64_t num_cols)
      : type(ggml_type), rows(num_rows), cols(num_cols), data(random_blocks(ggml_type, rows, cols)) {
    const size_t block = data.size() / static_cast<size_t>(rows * cols / 256);
    for (size_t at = 0; at < data.size(); at += block) data[at + 1] = data[at + 3] = 0x2c;
  }
  Matrix matrix() const { return Matrix(data.data(), static_cast<int64_t>(data.size()), type, rows, cols); }

  const int type;
  const int64_t rows, cols;
  std::vector<uint8_t> data;
};

bool same_bits(float a, float b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0 || (std::isnan(a) && std::isnan(b));
}

// Rows in memory order, and in a random order with uneven distances.
std::vector<std::vector<const void*>> orders(const Activations& rows, int64_t num_tokens) {
  std::vector<const void*> in_order;
  for (int64_t token = 0; token < num_tokens; ++token) in_order.push_back(rows.row(token));
  std::vector<const void*> shuffled = in_order;
  std::shuffle(shuffled.begin(), shuffled.end(), random_bits);
  return {in_order, shuffled};
}

}  // namespace

TEST(bytes_in_tiles_give_the_vector_kernels_bits) {
  ThreadPool pool(1);
  for (const Kernels* kernels : tile_kernels()) {
    for (const int64_t cols : {256, 1408, 1376, 1536}) {
      const Product product(pool, *kernels, kQ8_0, cols, 1);
      for (const int64_t num_tokens : kTokens) {
        const std::vector<float> x = random_floats(num_tokens * cols);
        const Activations rows(pool, product.panels, x.data(), num_tokens);
        for (const std::vector<const void*>& tokens : orders(rows, num_tokens)) {
          const std::vector<float> want = product.with(*find_isa("avx512"), tokens.data(), num_tokens);
          const std::vector<float> got = product.with(*kernels, tokens.data(), num_tokens);
          EXPECT(std::equal(got.begin(), got.end(), want.begin(), same_bits));
        }
      }
    }
  }
}

TEST(a_token_times_whole_blocks_is_the_same_in_any_batch) {
  ThreadPool pool(1);
  for (const Kernels* kernels : tile_kernels()) {
    for (const int ggml_type : {kQ4_K, kQ5_K}) {
      for (const int64_t cols : {256, 768}) {
        for (const int num_bytes : {1, 2}) {
          const Product product(pool, *kernels, ggml_type, cols, num_bytes);
          const int64_t panels = product.panels.panels_per_head();
          const std::vector<float> x = random_floats(kMostTokens * cols);
          const Activations rows(pool, product.panels, x.data(), kMostTokens);
          std::map<const void*, std::vector<float>> alone;
          for (int64_t token = 0; token < kMostTokens; ++token)
            alone[rows.row(token)] = product.with(*kernels, rows.rows() + token, 1);
          for (const int64_t num_tokens : kTokens) {
            for (const std::vector<const void*>& tokens : orders(rows, num_tokens)) {
              const std::vector<float> together = product.with(*kernels, tokens.data(), num_tokens);
              const int64_t stride = static_cast<int64_t>(together.size()) / panels;
              for (int64_t panel = 0; panel < panels; ++panel) {
                for (int64_t token = 0; token < num_tokens; ++token) {
                  const std::vector<float>& one = alone.at(tokens[static_cast<size_t>(token)]);
                  const auto want = one.begin() + panel * static_cast<int64_t>(one.size()) / panels;
                  EXPECT(std::equal(want, want + kPanelRows,
                                    together.begin() + panel * stride + token * kPanelRows, same_bits));
                }
                EXPECT_EQ(together[static_cast<size_t>((panel + 1) * stride - 1)], -7.0f);
              }
            }
          }
        }
      }
    }
  }
}

// Activations whose sums need the maximum number of digits.
TEST(the_largest_activations_of_one_sign_are_summed_up_exactly) {
  ThreadPool pool(1);
  constexpr int64_t kCols = 512, kNumTokens = 40;
  std::vector<float> x(kNumTokens * kCols, 1.0f);
  std::fill_n(x.begin(), x.size() / 2, -1.0f);
  for (const Kernels* kernels : tile_kernels()) {
    for (const int num_bytes : {1, 2}) {
      const Product product(pool, *kernels, kQ4_K, kCols, num_bytes);
      const Activations rows(pool, product.panels, x.data(), kNumTokens);
      const std::vector<float> together = product.with(*kernels, rows.rows(), kNumTokens);
      for (int64_t token = 0; token < kNumTokens; ++token) {
        const std::vector<float> alone = product.with(*kernels, rows.rows() + token, 1);
        EXPECT(std::equal(alone.begin(), alone.begin() + kPanelRows, together.begin() + token * kPanelRows,
                          same_bits));
      }
    }
  }
}

TEST(more_tokens_than_a_decoded_tile_serves_are_two_products) {
  ThreadPool pool(1);
  constexpr int64_t kCols = 256, kAtATime = 256;
  for (const Kernels* kernels : tile_kernels()) {
    for (const int num_bytes : {1, 2}) {
      const Product product(pool, *kernels, kQ4_K, kCols, num_bytes);
      for (const int64_t num_tokens : {257, 268, 300}) {
        const std::vector<float> x = random_floats(num_tokens * kCols);
        const Activations rows(pool, product.panels, x.data(), num_tokens);
        const std::vector<float> all = product.with(*kernels, rows.rows(), num_tokens);
        const std::vector<float> first = product.with(*kernels, rows.rows(), kAtATime);
        const std::vector<float> rest = product.with(*kernels, rows.rows() + kAtATime, num_tokens - kAtATime);
        EXPECT(std::equal(first.begin(), first.begin() + kAtATime * kPanelRows, all.begin(), same_bits));
        EXPECT(std::equal(rest.begin(), rest.begin() + (num_tokens - kAtATime) * kPanelRows,
                          all.begin() + kAtATime * kPanelRows, same_bits));
      }
    }
  }
}

TEST(tokens_arranged_in_advance_give_the_same_bits) {
  ThreadPool pool(1);
  for (const Kernels* kernels : tile_kernels()) {
    for (const int ggml_type : {kQ4_K, kQ5_K}) {
      for (const int num_bytes : {1, 2}) {
        const Product product(pool, *kernels, ggml_type, 768, num_bytes);
        for (const int64_t num_tokens : {12, 15, 16, 17, 24, 32, 63, 65, 90, 256}) {
          const std::vector<float> x = random_floats(num_tokens * 768);
          const Activations rows(pool, product.panels, x.data(), num_tokens);
          for (const std::vector<const void*>& tokens : orders(rows, num_tokens)) {
            const std::vector<float> want = product.with(*kernels, tokens.data(), num_tokens);
            const std::vector<float> got = product.with_arranged(*kernels, tokens.data(), num_tokens);
            EXPECT(std::equal(got.begin(), got.end(), want.begin(), same_bits));
          }
        }
      }
    }
  }
}

// One expert computes all tokens, more than one product takes; one computes every third token, one a few.
TEST(experts_of_many_tokens_give_each_token_the_bits_that_it_has_alone) {
  constexpr int64_t kHidden = 256, kWidth = 512, kExperts = 3, kNumTokens = 290;
  const std::vector<float> x = random_floats(kNumTokens * kHidden);
  const std::vector<float> weights = random_floats(kNumTokens * kExperts);
  std::vector<int32_t> ids;
  for (int32_t token = 0; token < kNumTokens; ++token)
    ids.insert(ids.end(), {0, token % 3 == 0 ? 1 : -1, token < 9 ? 2 : -1});
  Placement two_nodes;
  for (const int node : {0, 1}) two_nodes.nodes.push_back({node, {kAnyCpu}});
  ThreadPool one(2), two(two_nodes);
  for (const Kernels* kernels : tile_kernels()) {
    for (const int ggml_type : {kQ4_K, kQ5_K}) {
      const Stack gate(ggml_type, kExperts * kWidth, kHidden), up(ggml_type, kExperts * kWidth, kHidden);
      const Stack down(ggml_type, kExperts * kHidden, kWidth);
      const Experts in_place(gate.matrix(), up.matrix(), down.matrix(), kExperts);
      for (const int num_bytes : {1, 2}) {
        for (ThreadPool* pool : {&one, &two}) {
          const Experts experts = in_place.packed(*pool, {*kernels, num_bytes});
          std::vector<float> together(static_cast<size_t>(kNumTokens * kHidden));
          experts.forward(*pool, x.data(), kNumTokens, ids.data(), weights.data(), kExperts, together.data());
          for (const int64_t token : {0, 1, 8, 9, 255, 256, 287, 289}) {
            float alone[kHidden];
            experts.forward(*pool, x.data() + token * kHidden, 1, ids.data() + token * kExperts,
                            weights.data() + token * kExperts, kExperts, alone);
            EXPECT(std::equal(alone, alone + kHidden, together.begin() + token * kHidden, same_bits));
            EXPECT(std::any_of(alone, alone + kHidden, [](float value) { return value != 0.0f; }));
          }
        }
      }
    }
  }
}

// Three bfloat16 numbers represent a float exactly, so only sums are rounded: 2^-24 of the sum of magnitudes
// per term.
TEST(bfloats_in_tiles_round_only_sums) {
  ThreadPool pool(1);
  for (const Kernels* kernels : tile_kernels()) {
    for (const int64_t cols : {1, 31, 32, 33, 255, 256, 300, 515}) {
      const Product product(pool, *kernels, kBf16, cols, 2);
      for (const int64_t num_tokens : kTokens) {
        const std::vector<float> x = random_floats(num_tokens * cols);
        const Activations rows(pool, product.panels, x.data(), num_tokens);
        const std::vector<float> got = product.with(*kernels, rows.rows(), num_tokens);
        const int64_t stride = static_cast<int64_t>(got.size()) / product.panels.panels_per_head();
        std::vector<float> weights(static_cast<size_t>(cols));
        for (int64_t row = 0; row < kRows; ++row) {
          product.source.dequantize_row(row, weights.data());
          for (int64_t token = 0; token < num_tokens; ++token) {
            double want = 0.0;
            double magnitude = 0.0;
            for (int64_t col = 0; col < cols; ++col) {
              const double term = double{weights[static_cast<size_t>(col)]} * x[token * cols + col];
              want += term;
              magnitude += std::fabs(term);
            }
            const float result =
                got[static_cast<size_t>(row / kPanelRows * stride + token * kPanelRows + row % kPanelRows)];
            EXPECT(std::fabs(result - want) <= static_cast<double>(cols + 4) * 0x1p-23 * magnitude);
          }
        }
      }
    }
  }
}

TEST(a_token_times_bfloats_is_the_same_in_any_batch) {
  ThreadPool pool(1);
  constexpr int64_t kCols = 300;
  for (const Kernels* kernels : tile_kernels()) {
    const Product product(pool, *kernels, kBf16, kCols, 2);
    const std::vector<float> x = random_floats(70 * kCols);
    const Activations rows(pool, product.panels, x.data(), 70);
    const std::vector<float> together = product.with(*kernels, rows.rows(), 70);
    for (const int64_t token : {0, 15, 16, 64, 69}) {
      const void* alone[] = {rows.row(token)};
      const std::vector<float> got = product.with(*kernels, alone, 1);
      EXPECT(std::equal(got.begin(), got.begin() + kPanelRows, together.begin() + token * kPanelRows,
                        same_bits));
    }
  }
}
