// How weights lie in memory once they are repacked for the CPU kernels.
//
// A panel is 16 rows. Its columns are cut into groups of 32; of a group, four neighbouring columns of the 16
// rows form a quad: 64 bytes, [row][column], the operand of a byte dot product with one 32-bit lane a row.
// Eight quads make a group. Formats of fewer than eight bits keep their bits in planes, which hold of a group
//   nibbles  4 x 64 bytes: quad q in the low halves of line q, quad q + 4 in the high halves;
//   pairs    2 x 64 bytes: quad 4 l + s in bits 2 s, 2 s + 1 of line l;
//   bits     1 x 64 bytes: quad q in bit q.
// A panel is its scales (padded to 64 bytes), then its groups. Scales of 16 rows lie side by side.
//
// Only plain data here: this header is compiled into objects for instruction sets that the host may not have.
#pragma once

#include <cstdint>

namespace ballast {

constexpr int kPanelRows = 16;
constexpr int kGroupCols = 32;
constexpr int kGroupQuads = 8;
constexpr int kQuadBytes = 64;
// Groups that share a block scale in the formats of 256 weights a block.
constexpr int kSuperGroupsLog2 = 3;
constexpr int kSuperGroups = 1 << kSuperGroupsLog2;

enum class Scales {
  kFlat,     // a half-precision scale a group (and a minimum)
  kNested,   // a half-precision scale a super-block, times a byte a sub-block (and minima likewise)
  kNibbles,  // the same with a sub-block's scale and minimum in the two halves of one byte
};

// A weight is scale * (code - offset), or scale * code with minimum added (flat) or subtracted (nested), or
// scale * step[code].
struct QuantLayout {
  int bits;
  int sub_block;    // columns with a scale of their own: 16 or 32
  int offset_log2;  // offset = 1 << offset_log2; 0 stands for no offset
  Scales scales;
  bool has_minimum;
  bool is_table;  // codes index the IQ4 steps

  constexpr bool is_wide() const { return bits == 8 || is_table; }
  constexpr int group_bytes() const { return bits * kGroupCols * kPanelRows / 8; }
  constexpr int subs_per_group() const { return kGroupCols / sub_block; }
  // Bytes of the scales of a group (flat) or of a super-block.
  constexpr int scale_stride() const {
    const int block = 2 * kPanelRows * (has_minimum ? 2 : 1);
    const int subs = kSuperGroups * subs_per_group() * kPanelRows;
    return scales == Scales::kFlat      ? block
           : scales == Scales::kNibbles ? block + subs
                                        : block + subs * (has_minimum ? 2 : 1);
  }
  constexpr int64_t scale_bytes(int64_t cols) const {
    const int64_t records = cols / (scales == Scales::kFlat ? kGroupCols : kGroupCols * kSuperGroups);
    return (records * scale_stride() + 63) / 64 * 64;
  }
  constexpr int64_t panel_bytes(int64_t cols) const {
    return scale_bytes(cols) + cols / kGroupCols * group_bytes();
  }
};

//                                       bits sub log2 scales            minimum table
static constexpr QuantLayout kPanelQ4_0{4, 32, 3, Scales::kFlat, false, false};
static constexpr QuantLayout kPanelQ4_1{4, 32, 0, Scales::kFlat, true, false};
static constexpr QuantLayout kPanelQ5_0{5, 32, 4, Scales::kFlat, false, false};
static constexpr QuantLayout kPanelQ5_1{5, 32, 0, Scales::kFlat, true, false};
static constexpr QuantLayout kPanelQ8_0{8, 32, 7, Scales::kFlat, false, false};
static constexpr QuantLayout kPanelQ2_K{2, 16, 0, Scales::kNibbles, true, false};
static constexpr QuantLayout kPanelQ3_K{3, 16, 2, Scales::kNested, false, false};
static constexpr QuantLayout kPanelQ4_K{4, 32, 0, Scales::kNested, true, false};
static constexpr QuantLayout kPanelQ5_K{5, 32, 0, Scales::kNested, true, false};
static constexpr QuantLayout kPanelQ6_K{6, 16, 5, Scales::kNested, false, false};
static constexpr QuantLayout kPanelIQ4_NL{4, 32, 7, Scales::kFlat, false, true};
static constexpr QuantLayout kPanelIQ4_XS{4, 32, 7, Scales::kNested, false, true};

// One kernel each. Float panels are [column][16 rows].
enum class PanelKind : int {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
};
constexpr int kNumPanelKinds = 15;

// 32 activations of one token, rounded to whole numbers of one or two bytes: a number is quants[i], or the
// instruction set's kDigitBase * quants[i] + quants[32 + i].
template <int kBytes>
struct alignas(64) ActivationBlock {
  int8_t quants[kGroupCols * kBytes];
  float scale;
  int32_t negative_sum;  // of the numbers, as are all sums
  float sum;
  int32_t negative_half_sums[2];  // 0…15, 16…31
  float half_sums[2];
};
static_assert(sizeof(ActivationBlock<1>) == 64 && sizeof(ActivationBlock<2>) == 128);

// The largest number of one and of two bytes, and of the activations' largest magnitude.
constexpr float kMostActivation[] = {0.0f, 127.0f, 127.0f * 255.0f + 127.0f};

// Neighbouring blocks of activations that share a scale, in rows of `cols`: as many as a super-block has, or
// the largest power of two that divides a row into equal shares.
static constexpr int64_t blocks_per_scale(int64_t cols) {
  int64_t blocks = kSuperGroups;
  while (cols / kGroupCols % blocks != 0) blocks /= 2;
  return blocks;
}

}  // namespace ballast
