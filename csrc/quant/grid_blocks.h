// The formats of 256 weights per block whose codes are points of a grid (cpu/code_tables.h): IQ2_XXS, IQ2_XS,
// IQ2_S, IQ3_XXS, IQ3_S, IQ1_S and IQ1_M. All products of a weight's factors are exact, in any order.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/panel_layout.h"
#include "quant/floats.h"

namespace ballast {

struct BlockIQ2_XXS {
  F16 scale;
  uint8_t groups[8][8];  // four points, then a word: four times seven signs, and four bits of the scale
};

struct BlockIQ2_XS {
  F16 scale;
  uint8_t points[32][2];  // nine bits, and seven signs above them
  uint8_t scales[8];      // of 16 weights, low nibbles first
};

struct BlockIQ2_S {
  F16 scale;
  uint8_t points[32];
  uint8_t signs[32];
  uint8_t high[8];  // two bits a point
  uint8_t scales[8];
};

struct BlockIQ3_XXS {
  F16 scale;
  uint8_t points[64];
  uint8_t words[8][4];  // as in IQ2_XXS
};

struct BlockIQ3_S {
  F16 scale;
  uint8_t points[64];
  uint8_t high[8];  // a bit a point
  uint8_t signs[32];
  uint8_t scales[4];  // of 32 weights, low nibbles first
};

struct BlockIQ1_S {
  F16 scale;
  uint8_t points[32];
  uint8_t high[8]
              [2];  // four times three bits, three of the group's scale, and whether weights are shifted down
};

struct BlockIQ1_M {
  uint8_t points[32];
  uint8_t high[16];      // a nibble a point: three bits, and whether its weights are shifted down
  uint8_t scales[4][2];  // four scales of 16 weights in each word, and a nibble of the block's
};

// A block taken apart as a panel has it (cpu/panel_layout.h), of one row.
struct PointBlock {
  uint8_t numbers[64];
  uint8_t signs[32];
  uint8_t high[16];
  uint8_t scales[8];
  F16 scale;
};

// Four times seven signs, and above each a bit of the scale.
inline void read_sign_word(const uint8_t* bytes, uint8_t* signs) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof(word));
  for (int i = 0; i < 4; ++i)
    signs[i] = static_cast<uint8_t>((word >> 7 * i & 127) | (word >> (28 + i) & 1) << 7);
}

inline void read_points(const BlockIQ2_XXS& block, PointBlock& out) {
  for (int group = 0; group < 8; ++group) {
    std::memcpy(out.numbers + 4 * group, block.groups[group], 4);
    read_sign_word(block.groups[group] + 4, out.signs + 4 * group);
  }
  out.scale = block.scale;
}

inline void read_points(const BlockIQ2_XS& block, PointBlock& out) {
  for (int point = 0; point < 32; ++point) {
    const int low = block.points[point][0], high = block.points[point][1];
    out.numbers[point] = static_cast<uint8_t>(low);
    out.signs[point] = static_cast<uint8_t>(high >> 1 | (high & 1) << 7);
  }
  std::memcpy(out.scales, block.scales, sizeof(block.scales));
  out.scale = block.scale;
}

// Of a block that keeps each part of its points by itself.
template <class Block>
void read_parts(const Block& block, PointBlock& out) {
  std::memcpy(out.numbers, block.points, sizeof(block.points));
  std::memcpy(out.signs, block.signs, sizeof(block.signs));
  std::memcpy(out.high, block.high, sizeof(block.high));
  std::memcpy(out.scales, block.scales, sizeof(block.scales));
  out.scale = block.scale;
}

inline void read_points(const BlockIQ2_S& block, PointBlock& out) { read_parts(block, out); }

inline void read_points(const BlockIQ3_XXS& block, PointBlock& out) {
  std::memcpy(out.numbers, block.points, sizeof(block.points));
  for (int group = 0; group < 8; ++group) read_sign_word(block.words[group], out.signs + 4 * group);
  out.scale = block.scale;
}

inline void read_points(const BlockIQ3_S& block, PointBlock& out) { read_parts(block, out); }

inline void read_points(const BlockIQ1_S& block, PointBlock& out) {
  std::memcpy(out.numbers, block.points, sizeof(block.points));
  for (int group = 0; group < 8; ++group) {
    const int word = block.high[group][0] | block.high[group][1] << 8;
    int nibbles = 0;
    for (int i = 0; i < 4; ++i)
      nibbles |= (word >> 3 * i & 7) << 4 * i | (word >> (12 + i) & 1) << (4 * i + 3);
    out.high[2 * group] = static_cast<uint8_t>(nibbles);
    out.high[2 * group + 1] = static_cast<uint8_t>(nibbles >> 8);
  }
  out.scale = block.scale;
}

inline void read_points(const BlockIQ1_M& block, PointBlock& out) {
  std::memcpy(out.numbers, block.points, sizeof(block.points));
  std::memcpy(out.high, block.high, sizeof(block.high));
  int scale = 0;
  for (int i = 0; i < 4; ++i) {
    const int word = block.scales[i][0] | block.scales[i][1] << 8;
    scale |= word >> 12 << 4 * i;
    out.scales[2 * i] = static_cast<uint8_t>((word & 7) | (word >> 3 & 7) << 4);
    out.scales[2 * i + 1] = static_cast<uint8_t>((word >> 6 & 7) | (word >> 9 & 7) << 4);
  }
  out.scale = {{static_cast<uint8_t>(scale), static_cast<uint8_t>(scale >> 8)}};
}

inline int high_nibbles(const PointBlock& block, int group) {
  return block.high[2 * group] | block.high[2 * group + 1] << 8;
}

// The number of a group's point.
template <const QuantLayout& kLayout>
int point_of(const PointBlock& block, int group, int point) {
  constexpr Grid kGrid = kLayout.grid();
  const int low = block.numbers[kGroupCols / kGrid.weights * group + point];
  if (kGrid.high_bytes == 2) return low | (high_nibbles(block, group) >> 4 * point & 7) << 8;
  if (kGrid.high_bytes == 1) {
    constexpr int kBits = kGrid.index_bits - 8;
    return low | (block.high[group] >> kBits * point & ((1 << kBits) - 1)) << 8;
  }
  return kGrid.index_bits == 9 ? low | block.signs[4 * group + point] >> 7 << 8 : low;
}

// The scale of a group's sub-block, an odd number.
template <const QuantLayout& kLayout>
int odd_scale_of(const PointBlock& block, int group, int sub) {
  int number = 0;
  if (kLayout.scales == Scales::kOddNibbles) {
    const bool has_two = kLayout.subs_per_group() == 2;
    number = block.scales[has_two ? group : group / 2] >> 4 * (has_two ? sub : group % 2) & 15;
  } else if (kLayout.grid().is_shifted()) {
    for (int i = 0; i < 3; ++i) number |= (high_nibbles(block, group) >> (4 * i + 3) & 1) << i;
  } else {
    for (int i = 0; i < 4; ++i) number |= block.signs[4 * group + i] >> 7 << i;
  }
  return 2 * number + 1;
}

// The numbers that a point's weights are multiples of the scale by, 2 to the power of scale_log2 times too
// large.
template <const QuantLayout& kLayout>
int coordinate_of(const PointBlock& block, int group, int i) {
  constexpr Grid kGrid = kLayout.grid();
  const int point = i / kGrid.weights;
  const int codes = kGrid.points[point_of<kLayout>(block, group, point)];
  const int level =
      kGrid.levels[codes >> i % kGrid.weights * kGrid.level_bits() & ((1 << kGrid.level_bits()) - 1)];
  if (kGrid.is_shifted()) {
    const int bit = kLayout.scales == Scales::kOddInCodes ? 15 : 4 * point + 3;
    return 8 * level + ((high_nibbles(block, group) >> bit & 1) != 0 ? -1 : 1);
  }
  int signs = block.signs[4 * group + i / 8];
  if (kGrid.sign_bits == 7) {
    signs &= 127;
    int count = 0;
    for (int bit = 0; bit < 7; ++bit) count += signs >> bit & 1;
    signs |= count % 2 << 7;
  }
  return (signs >> i % 8 & 1) != 0 ? -level : level;
}

template <const QuantLayout& kLayout>
void dequantize_points(const PointBlock& block, float* __restrict out) {
  const float scale = block.scale.to_float() / static_cast<float>(1 << kLayout.grid().scale_log2);
  for (int group = 0; group < kSuperGroups; ++group) {
    for (int i = 0; i < kGroupCols; ++i) {
      const float sub_scale =
          scale * static_cast<float>(odd_scale_of<kLayout>(block, group, i / kLayout.sub_block));
      out[group * kGroupCols + i] = sub_scale * static_cast<float>(coordinate_of<kLayout>(block, group, i));
    }
  }
}

#define BALLAST_DEQUANTIZE_POINTS(name, ...)                                      \
  inline void dequantize_block(const Block##name& block, float* __restrict out) { \
    PointBlock points{};                                                          \
    read_points(block, points);                                                   \
    dequantize_points<kPanel##name>(points, out);                                 \
  }
BALLAST_DEQUANTIZE_POINTS(IQ2_XXS)
BALLAST_DEQUANTIZE_POINTS(IQ2_XS)
BALLAST_DEQUANTIZE_POINTS(IQ2_S)
BALLAST_DEQUANTIZE_POINTS(IQ3_XXS)
BALLAST_DEQUANTIZE_POINTS(IQ3_S)
BALLAST_DEQUANTIZE_POINTS(IQ1_S)
BALLAST_DEQUANTIZE_POINTS(IQ1_M)
#undef BALLAST_DEQUANTIZE_POINTS

}  // namespace ballast
