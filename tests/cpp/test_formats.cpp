// Hand-written blocks and memory bounds; tests/kernels compares every format with the gguf package.
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "quant/blocks256.h"
#include "quant/blocks32.h"
#include "quant/floats.h"
#include "quant/formats.h"
#include "quant/matrix.h"

using namespace ballast;

namespace {

constexpr F16 kOne{{0x00, 0x3c}};
constexpr F16 kHalf{{0x00, 0x38}};

float half(uint16_t bits) {
  return F16{{static_cast<uint8_t>(bits & 0xff), static_cast<uint8_t>(bits >> 8)}}.to_float();
}

}  // namespace

TEST(halves_convert_exactly_with_subnormals_signs_and_infinities) {
  EXPECT_EQ(half(0x3c00), 1.0f);
  EXPECT_EQ(half(0xc500), -5.0f);
  EXPECT_EQ(half(0x7bff), 65504.0f);
  EXPECT_EQ(half(0x0400), std::ldexp(1.0f, -14));
  EXPECT_EQ(half(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(half(0x83ff), -std::ldexp(1023.0f, -24));
  EXPECT_EQ(half(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(half(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT(std::isnan(half(0x7e00)));
  EXPECT(half(0x8000) == 0.0f && std::signbit(half(0x8000)));
}

TEST(the_table_has_each_type_once_and_finds_it) {
  std::set<int> types;
  std::set<std::string> names;
  for (const FormatTraits& format : all_formats()) {
    types.insert(format.ggml_type);
    names.insert(format.name);
    EXPECT(find_format(format.ggml_type) == &format);
  }
  EXPECT_EQ(types.size(), all_formats().size());
  EXPECT_EQ(names.size(), all_formats().size());
  EXPECT(find_format(-1) == nullptr);
  EXPECT(find_format(99) == nullptr);
}

TEST(every_format_stays_inside_its_blocks_and_weights) {
  for (const FormatTraits& format : all_formats()) {
    for (int num_blocks : {1, 3}) {
      // Heap blocks of the exact size, with the bytes at an odd address: a sanitizer
      // detects any access outside.
      std::vector<uint8_t> bytes(static_cast<size_t>(num_blocks * format.block_bytes) + 1, 0);
      std::vector<float> weights(static_cast<size_t>(num_blocks * format.block_weights), NAN);
      format.dequantize_row(bytes.data() + 1, static_cast<int64_t>(weights.size()), weights.data());
      for (float weight : weights) EXPECT_EQ(weight, 0.0f);
    }
  }
}

TEST(a_q4_0_block_holds_its_first_half_in_low_nibbles) {
  BlockQ4_0 block{kHalf, {}};
  for (int i = 0; i < 16; ++i) block.nibbles[i] = static_cast<uint8_t>(i | (15 - i) << 4);
  float out[32];
  dequantize_block(block, out);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(out[i], 0.5f * static_cast<float>(i - 8));
    EXPECT_EQ(out[16 + i], 0.5f * static_cast<float>(7 - i));
  }
}

TEST(a_q4_k_block_unpacks_six_bit_scales_from_three_places) {
  BlockQ4_K block{kOne, kHalf, {}, {}};
  const int scales[8] = {1, 17, 33, 63, 2, 18, 34, 62};
  const int minima[8] = {5, 21, 37, 61, 6, 22, 38, 60};
  for (int g = 0; g < 4; ++g) {
    block.scales[g] = static_cast<uint8_t>(scales[g] | (scales[g + 4] >> 4) << 6);
    block.scales[g + 4] = static_cast<uint8_t>(minima[g] | (minima[g + 4] >> 4) << 6);
    block.scales[g + 8] = static_cast<uint8_t>((scales[g + 4] & 15) | (minima[g + 4] & 15) << 4);
  }
  std::memset(block.nibbles, 0x31,
              sizeof(block.nibbles));  // 1 in even groups, 3 in odd ones
  float out[256];
  dequantize_block(block, out);
  for (int i = 0; i < 256; ++i) {
    const int g = i / 32;
    EXPECT_EQ(out[i],
              static_cast<float>(scales[g] * (g % 2 == 0 ? 1 : 3)) - 0.5f * static_cast<float>(minima[g]));
  }
}

TEST(a_matrix_finds_its_rows_and_blocks) {
  std::vector<BlockQ8_0> blocks(6);  // 2 rows of 96
  for (size_t b = 0; b < blocks.size(); ++b) {
    blocks[b].scale = kOne;
    for (int8_t& quant : blocks[b].quants) quant = static_cast<int8_t>(b);
  }
  const Matrix matrix(blocks.data(), 6 * 34, 8, 2, 96);
  std::vector<float> row(96);
  matrix.dequantize_row(1, row.data());
  EXPECT_EQ(row[0], 3.0f);
  EXPECT_EQ(row[95], 5.0f);
  std::vector<float> slice(32);
  matrix.dequantize_slice(1, 32, 64, slice.data());
  EXPECT_EQ(slice[0], 4.0f);
  EXPECT_EQ(slice[31], 4.0f);
  EXPECT_EQ(matrix.num_bytes(), 204);
}

TEST(an_inconsistent_matrix_is_rejected) {
  const std::vector<uint8_t> bytes(68);
  EXPECT_THROWS(Matrix(bytes.data(), 68, 99, 2, 32), std::invalid_argument);
  EXPECT_THROWS(Matrix(bytes.data(), 68, 8, 2, 33), std::invalid_argument);
  EXPECT_THROWS(Matrix(bytes.data(), 67, 8, 2, 32), std::invalid_argument);
  EXPECT_THROWS(Matrix(bytes.data(), 68, 8, -2, -32), std::invalid_argument);
  EXPECT_THROWS(Matrix(bytes.data(), 68, 8, int64_t{1} << 60, 32), std::invalid_argument);
  EXPECT_THROWS(Matrix(bytes.data(), 68, 8, 1, int64_t{1} << 62), std::invalid_argument);
  EXPECT_EQ(Matrix(bytes.data(), 68, 8, 2, 32).rows(), 2);
  EXPECT_EQ(Matrix(nullptr, 0, 8, 0, 32).num_bytes(), 0);
}
