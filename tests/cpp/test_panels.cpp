// Packing and multiplying with sanitizers: every format, instruction set, number of tokens and partial size.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "cpu/dispatch.h"
#include "moe/experts.h"
#include "ops/activations.h"
#include "ops/linear.h"
#include "quant/matrix.h"

using namespace ballast;

namespace {

std::mt19937 random_bits(7);

// Blocks of random bits; a half-precision field may become NaN, which the products must handle.
std::vector<uint8_t> random_bytes(const FormatTraits& format, int64_t rows, int64_t cols) {
  std::vector<uint8_t> bytes(static_cast<size_t>(rows * cols / format.block_weights * format.block_bytes));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_bits());
  return bytes;
}

std::vector<float> random_floats(int64_t num) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(num));
  for (float& value : values) value = normal(random_bits);
  return values;
}

struct Fast {
  const Kernels* kernels;
  int bytes_of_activations;
};

std::vector<Fast> fast_kernels() {
  std::vector<Fast> all;
  for (const std::string& name : usable_isas()) {
    if (const Kernels* kernels = find_isa(name)) {
      for (const int bytes : {1, 2}) all.push_back({kernels, bytes});
    }
  }
  return all;
}

int64_t narrow_cols(const FormatTraits& format) {
  return format.block_weights == 1 ? 37 : 2 * format.block_weights;
}

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kFindsAccessesOutside = true;
#elif defined(__has_feature)
constexpr bool kFindsAccessesOutside = __has_feature(address_sanitizer);
#else
constexpr bool kFindsAccessesOutside = false;
#endif

bool same_bits(float a, float b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0 || (std::isnan(a) && std::isnan(b));
}

}  // namespace

TEST(packing_keeps_every_weight) {
  ThreadPool pool(2);
  for (const auto& [kernels, bytes_of_activations] : fast_kernels()) {
    for (const FormatTraits& format : all_formats()) {
      const int64_t cols = narrow_cols(format);
      for (const int64_t rows : {1, 16, 19}) {
        const std::vector<uint8_t> bytes = random_bytes(format, rows, cols);
        const Matrix matrix(bytes.data(), static_cast<int64_t>(bytes.size()), format.ggml_type, rows, cols);
        const Matrix packed =
            matrix.packed(pool, {*kernels, bytes_of_activations}, {1, 0, 0, rows}, PanelRows::kAsStored);
        std::vector<float> want(static_cast<size_t>(cols));
        std::vector<float> got(static_cast<size_t>(cols));
        int64_t num_wrong = 0;
        for (int64_t row = 0; row < rows; ++row) {
          matrix.dequantize_row(row, want.data());
          packed.panels()->unpack_row(0, row, got.data());
          for (size_t i = 0; i < want.size(); ++i) num_wrong += !same_bits(want[i], got[i]);
        }
        EXPECT_EQ(num_wrong, 0);
      }
    }
  }
}

TEST(a_token_gets_the_same_bits_alone_and_in_a_batch) {
  ThreadPool pool(2);
  for (const auto& [kernels, bytes_of_activations] : fast_kernels()) {
    for (const FormatTraits& format : all_formats()) {
      const int64_t rows = 35;
      const int64_t cols = narrow_cols(format);
      const int64_t most_tokens = 67;
      const std::vector<uint8_t> bytes = random_bytes(format, rows, cols);
      const Matrix packed =
          Matrix(bytes.data(), static_cast<int64_t>(bytes.size()), format.ggml_type, rows, cols)
              .packed(pool, {*kernels, bytes_of_activations}, {1, 0, 0, rows}, PanelRows::kAsStored);
      const std::vector<float> x = random_floats(most_tokens * cols);
      std::vector<float> alone(static_cast<size_t>(most_tokens * rows));
      for (int64_t token = 0; token < most_tokens; ++token) {
        linear(pool, x.data() + token * cols, 1, packed, alone.data() + token * rows);
      }
      for (const int64_t num_tokens : {0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 15, 64, 67}) {
        std::vector<float> out(static_cast<size_t>(num_tokens * rows));
        linear(pool, x.data(), num_tokens, packed, out.data());
        int64_t num_wrong = 0;
        for (size_t i = 0; i < out.size(); ++i) num_wrong += !same_bits(out[i], alone[i]);
        EXPECT_EQ(num_wrong, 0);
      }
    }
  }
}

TEST(panels_give_the_bits_of_each_token_alone_in_any_arrangement) {
  ThreadPool pool(1);
  constexpr int64_t kCols = 512, kPanels = 3, kMostTokens = 14;
  const std::vector<float> x = random_floats(kMostTokens * kCols);
  for (const FormatTraits& format : all_formats()) {
    const std::vector<uint8_t> bytes = random_bytes(format, kPanels * kPanelRows, kCols);
    const Matrix source(bytes.data(), static_cast<int64_t>(bytes.size()), format.ggml_type,
                        kPanels * kPanelRows, kCols);
    for (const Fast& fast : fast_kernels()) {
      const Matrix packed = source.packed(pool, {*fast.kernels, fast.bytes_of_activations},
                                          {1, 0, 0, kPanels * kPanelRows}, PanelRows::kAsStored);
      const Panels* panels = packed.panels();
      if (!panels->takes_quantized()) continue;
      const Activations activations(pool, *panels, x.data(), kMostTokens);
      PanelRun run = panels->run(0, {0, kPanels});
      const auto multiply = panels->activation_kernels().multiply[static_cast<int>(panels->kind())];
      // [panel][token][16]
      std::vector<float> alone(static_cast<size_t>(kPanels * kMostTokens * kPanelRows));
      for (int64_t token = 0; token < kMostTokens; ++token)
        multiply(run, activations.rows() + token, 1,
                 {alone.data() + token * kPanelRows, kMostTokens * kPanelRows});
      for (const bool in_one_stream : {false, true}) {
        run.prefetching.in_one_stream = in_one_stream;
        for (int64_t num_tokens = 2; num_tokens <= kMostTokens; ++num_tokens) {
          constexpr float kUnwritten = 1e30f;
          std::vector<float> out(alone.size(), kUnwritten);
          multiply(run, activations.rows(), num_tokens, {out.data(), kMostTokens * kPanelRows});
          int64_t num_wrong = 0;
          for (size_t i = 0; i < out.size(); ++i) {
            const bool is_asked = static_cast<int64_t>(i) / kPanelRows % kMostTokens < num_tokens;
            num_wrong += !same_bits(out[i], is_asked ? alone[i] : kUnwritten);
          }
          EXPECT_EQ(num_wrong, 0);
        }
      }
    }
  }
}

TEST(heads_and_their_transposes_stay_inside_their_memory) {
  ThreadPool pool(2);
  for (const auto& [kernels, bytes_of_activations] : fast_kernels()) {
    const FormatTraits& format = *find_format(8);
    const HeadRows heads{3, 21, 5, 13};
    const std::vector<uint8_t> bytes = random_bytes(format, 3 * 21, 96);
    const Matrix matrix(bytes.data(), static_cast<int64_t>(bytes.size()), 8, 3 * 21, 96);
    const Matrix turned =
        matrix.packed(pool, {*kernels, bytes_of_activations}, heads, PanelRows::kTransposed);
    EXPECT_EQ(turned.panels()->head_rows(), 96);
    const std::vector<float> x = random_floats(5 * 3 * 13);
    std::vector<float> out(5 * 3 * 96);
    head_linear_transposed(pool, x.data(), 5, turned, heads, out.data());
    const Matrix straight =
        matrix.packed(pool, {*kernels, bytes_of_activations}, heads, PanelRows::kAsStored);
    std::vector<float> back(5 * 3 * 13);
    head_linear(pool, out.data(), 5, straight, heads, back.data());
    EXPECT_EQ(straight.panels()->panels_per_head(), 1);
  }
}

TEST(experts_of_every_format_stay_inside_their_memory) {
  ThreadPool pool(3);
  const int64_t num_experts = 3;
  for (const auto& [kernels, bytes_of_activations] : fast_kernels()) {
    for (const FormatTraits& format : all_formats()) {
      const int64_t hidden = narrow_cols(format);
      const int64_t width = format.block_weights == 1 ? 13 : format.block_weights;
      const PanelTarget target{*kernels, bytes_of_activations};
      const std::vector<uint8_t> gate_bytes = random_bytes(format, num_experts * width, hidden);
      const std::vector<uint8_t> down_bytes = random_bytes(format, num_experts * hidden, width);
      const Matrix gate(gate_bytes.data(), static_cast<int64_t>(gate_bytes.size()), format.ggml_type,
                        num_experts * width, hidden);
      const Matrix down(down_bytes.data(), static_cast<int64_t>(down_bytes.size()), format.ggml_type,
                        num_experts * hidden, width);
      const Experts experts = Experts(gate, gate, down, num_experts).packed(pool, target);
      // 70 tokens are slow on emulated CPUs, where nothing reports an access outside.
      std::vector<int64_t> batches{0, 1, 9};
      if (kFindsAccessesOutside) batches.push_back(70);
      for (const int64_t num_tokens : batches) {
        const std::vector<float> x = random_floats(num_tokens * hidden);
        std::vector<int32_t> ids;
        for (int64_t i = 0; i < 2 * num_tokens; ++i) ids.push_back(static_cast<int32_t>(i % num_experts));
        const std::vector<float> weights(ids.size(), 0.5f);
        std::vector<float> out(x.size(), 1.0f);
        experts.forward(pool, x.data(), num_tokens, ids.data(), weights.data(), 2, out.data());
      }
    }
  }
}

TEST(an_unknown_instruction_set_is_refused) {
  EXPECT_THROWS(find_isa("mmx"), std::invalid_argument);
  EXPECT(find_isa("reference") == nullptr);
}
