// How weights lie in memory once they are repacked for the CPU kernels.
//
// A panel is 16 rows. Its columns are cut into groups of 32; of a group, four neighbouring columns of the 16
// rows form a quad: 64 bytes, [row][column], the operand of a byte dot product with one 32-bit lane a row.
// Eight quads make a group. Formats of fewer than eight bits keep their bits in planes, which hold of a group
//   nibbles  4 x 64 bytes: quad q in the low halves of line q, quad q + 4 in the high halves;
//   pairs    2 x 64 bytes: quad 4 l + s in bits 2 s, 2 s + 1 of line l;
//   bits     1 x 64 bytes: quad q in bit q.
// Formats whose codes are the points of a grid keep the points' numbers: of a group
//   numbers  64 bytes a 4 points of a row: the low eight bits, [row][point];
//   signs    64 bytes, where points have none: a byte for 8 weights, [row][8 weights]. The top bit is another
//            one's where seven stand for eight: the ninth of a number, or one of the four of the group's
//            scale;
//   high     16 rows of 0 to 2 bytes: further bits of numbers. Of two bytes, a point has a nibble: three bits
//            of its number, and one that shifts its weights or belongs to the group's scale.
// Codes of three values are kept five to a byte: of a super-block
//   trits    13 x 64 bytes: quad 5 l + n of its 64 is digit n of line l, the first the largest one's. A byte
//   b
//            is the number of five digits to the base of 3, times 256 / 243 rounded up, so that digit n is
//            3 (3^n b mod 256) / 256, rounded down.
// A panel is its scales (padded to 64 bytes), then its groups. Scales of 16 rows lie side by side.
//
// Compiled into objects for instruction sets that the host may not have: functions are in the namespace of
// cpu/isa_namespace.h.
#pragma once

#include <cstdint>

#include "cpu/code_tables.h"
#include "cpu/format_list.h"
#include "cpu/isa_namespace.h"

namespace ballast {

// Of how panels of any format lie, which files of packed weights name. To be raised with every change of
// that; tests/kernels/test_panel_files.py knows the bytes.
constexpr int kPanelLayoutVersion = 1;

constexpr int kPanelRows = 16;
constexpr int kGroupCols = 32;
constexpr int kGroupQuads = 8;
constexpr int kQuadBytes = 64;
// Groups that share a block scale in the formats of 256 weights a block.
constexpr int kSuperGroupsLog2 = 3;
constexpr int kSuperGroups = 1 << kSuperGroupsLog2;
// A super-block's 64 quads, five to a line.
constexpr int kTritsPerByte = 5;
constexpr int kTritLines = (kSuperGroups * kGroupQuads + kTritsPerByte - 1) / kTritsPerByte;

enum class Scales {
  kFlat,     // a half-precision scale a group (and a minimum)
  kPowers,   // a byte a group: the exponent of a power of two
  kE4M3,     // a byte a sub-block: a float of four bits of exponent and three of mantissa, without a sign
  kNested,   // a half-precision scale a super-block, times a byte a sub-block (and minima likewise)
  kNibbles,  // the same with a sub-block's scale and minimum in the two halves of one byte
  kBlock,    // a half-precision scale a super-block
  // A half-precision scale a super-block, times 2 n + 1 for each sub-block. n is
  kOddNibbles,  // a nibble; a byte has those of a group's two sub-blocks, or of two groups
  kOddInCodes,  // among a group's signs, or the high bits of its points
};

inline namespace BALLAST_ISA_NAMESPACE {

// A weight is scale * (code - offset), or scale * code with minimum added (flat) or subtracted (nested), or
// scale * step[code] (code_tables.h).
struct QuantLayout {
  int bits;
  int sub_block;  // columns with a scale of their own: 16 or 32
  int offset;     // a power of two, or 0
  Scales scales;
  bool has_minimum;
  CodeTable table;  // that codes index

  // Of the format's blocks in a file: a group with scales of its own, two of them, or a super-block.
  constexpr int block_weights() const {
    return kGroupCols * (scales == Scales::kE4M3 ? 2 : is_flat() ? 1 : kSuperGroups);
  }
  // Whether a group has its scales to itself, and shares none with others of a super-block.
  constexpr bool is_flat() const {
    return scales == Scales::kFlat || scales == Scales::kPowers || scales == Scales::kE4M3;
  }
  constexpr bool has_table() const { return table == CodeTable::kIQ4 || table == CodeTable::kE2M1; }
  constexpr bool has_trits() const { return table == CodeTable::kTrits; }
  constexpr Grid grid() const { return grid_of(table); }
  constexpr bool has_grid() const { return grid().points != nullptr; }
  // Whether groups are decoded to memory before they are multiplied, however few the tokens are.
  constexpr bool is_decoded_first() const { return has_grid() || has_trits(); }
  constexpr bool is_wide() const { return bits == 8 || has_table(); }
  constexpr int group_bytes() const {
    if (has_trits()) return kTritLines * kQuadBytes / kSuperGroups;
    if (has_grid()) return high_plane() + kPanelRows * grid().high_bytes;
    return bits * kGroupCols * kPanelRows / 8;
  }
  // Where the planes of a group of points begin.
  constexpr int sign_plane() const { return kPanelRows * kGroupCols / grid().weights; }
  constexpr int high_plane() const { return sign_plane() + (grid().sign_bits > 0 ? kQuadBytes : 0); }
  constexpr int offset_log2() const {
    int log2 = 0;
    while (offset > 1 << log2) ++log2;
    return log2;
  }
  constexpr int subs_per_group() const { return kGroupCols / sub_block; }
  // Whether a super-block's products with whole numbers can be summed up before any scale is a float: a scale
  // and a minimum of six bits for each group of codes of five bits at most.
  constexpr bool sums_whole_blocks() const {
    return scales == Scales::kNested && has_minimum && sub_block == kGroupCols && bits <= 5;
  }
  // Whether codes times their sub-block's scale are bytes, and a sub-block's sums of codes times bytes are
  // words, so that a super-block's products can be summed up in whole numbers: codes of two bits with scales
  // of four, or of three, 4 too large, with scales of six and a sign.
  constexpr bool scales_codes() const {
    return scales == Scales::kNibbles || (scales == Scales::kNested && bits == 3 && offset == 4);
  }
  // Whether such products are signed, and kept negative.
  constexpr bool negates_codes() const { return scales_codes() && offset > 0; }
  // Whether weights are signed bytes with a scale a group.
  constexpr bool is_signed_bytes() const {
    return scales == Scales::kFlat && !has_minimum && bits == 8 && offset == 128;
  }
  // Bytes of the scales of a group (flat layouts) or of a super-block.
  constexpr int scale_stride() const {
    const int block = 2 * kPanelRows * (has_minimum ? 2 : 1);
    const int subs = kSuperGroups * subs_per_group() * kPanelRows;
    return scales == Scales::kFlat                                     ? block
           : scales == Scales::kPowers                                 ? kPanelRows
           : scales == Scales::kE4M3                                   ? kPanelRows * subs_per_group()
           : scales == Scales::kNibbles                                ? block + subs
           : scales == Scales::kOddNibbles                             ? block + subs / 2
           : scales == Scales::kOddInCodes || scales == Scales::kBlock ? block
                                                                       : block + subs * (has_minimum ? 2 : 1);
  }
  constexpr int64_t scale_bytes(int64_t cols) const {
    const int64_t records = cols / (is_flat() ? kGroupCols : kGroupCols * kSuperGroups);
    return (records * scale_stride() + 63) / 64 * 64;
  }
  constexpr int64_t panel_bytes(int64_t cols) const {
    return scale_bytes(cols) + cols / kGroupCols * group_bytes();
  }
};

#define BALLAST_NONE(...)
#define BALLAST_LAYOUT(name, type, weights, bytes, bits, sub_block, offset, scales, minimum, table) \
  static constexpr QuantLayout kPanel##name{bits,           sub_block, offset,                      \
                                            Scales::scales, minimum,   CodeTable::table};           \
  static_assert(offset == 0 || 1 << kPanel##name.offset_log2() == offset);                          \
  static_assert(kPanel##name.block_weights() == weights);                                           \
  static_assert(!kPanel##name.has_table() || bits == kTableBits);                                   \
  static_assert(!kPanel##name.has_grid() || (bits == 8 && offset == 128));
BALLAST_FORMATS(BALLAST_NONE, BALLAST_LAYOUT)
#undef BALLAST_LAYOUT
#undef BALLAST_NONE

}  // namespace BALLAST_ISA_NAMESPACE

// One kernel each. Float panels are [column][16 rows].
enum class PanelKind : int {
#define BALLAST_KIND(name, ...) k##name,
  BALLAST_FORMATS(BALLAST_KIND, BALLAST_KIND)
#undef BALLAST_KIND
};

#define BALLAST_ONE(...) +1
constexpr int kNumPanelKinds = 0 BALLAST_FORMATS(BALLAST_ONE, BALLAST_ONE);
#undef BALLAST_ONE

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
  int16_t negative_half_digits[kBytes][2];  // of the numbers' first bytes and, of two, of their second
};
static_assert(sizeof(ActivationBlock<1>) == 64 && sizeof(ActivationBlock<2>) == 128);

// The largest number of one and of two bytes, and of the activations' largest magnitude.
constexpr float kMostActivation[] = {0.0f, 127.0f, 127.0f * 255.0f + 127.0f};

inline namespace BALLAST_ISA_NAMESPACE {

// Neighbouring blocks of activations that share a scale, in rows of `cols`: as many as a super-block has, or
// the largest power of two that divides a row into equal shares.
constexpr int64_t blocks_per_scale(int64_t cols) {
  int64_t blocks = kSuperGroups;
  while (cols / kGroupCols % blocks != 0) blocks /= 2;
  return blocks;
}

}  // namespace BALLAST_ISA_NAMESPACE

}  // namespace ballast
