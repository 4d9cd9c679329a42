// The layout of weights that are packed for the CPU kernels.
//
// A panel is 16 rows. Its columns form groups of 32. Four adjacent columns of a group form a quad: 64 bytes,
// [row][column], the operand of a byte dot product with one 32-bit lane per row. A group has eight quads.
// Formats with fewer than eight bits store their bits in planes. Per group:
//   nibbles  4 x 64 bytes: quad q in the low nibbles of line q, quad q + 4 in the high nibbles;
//   pairs    2 x 64 bytes: quad 4 l + s in bits 2 s, 2 s + 1 of line l;
//   bits     1 x 64 bytes: quad q in bit q.
// Formats whose codes are grid points store the numbers of the points. Per group:
//   numbers  64 bytes per 4 points of a row: the low eight bits, [row][point];
//   signs    64 bytes, if points have no signs: one byte per 8 weights, [row][8 weights]. If a byte has
//            seven signs, its top bit is the ninth bit of a number, or one of four bits of the scale;
//   high     16 rows of 0 to 2 bytes: further bits of numbers. With two bytes, a point has a nibble: three
//            bits of its number, and one bit that shifts its weights or belongs to the scale.
// Codes of three values are stored five per byte. Per super-block:
//   trits    13 x 64 bytes: quad 5 l + n is digit n of line l, most significant first. A byte b is the
//            number with these five digits of base 3, times 256 / 243 rounded up. Digit n is
//            3 (3^n b mod 256) / 256, rounded down.
// A panel is its scales, padded to 64 bytes, and then its groups. Scales of 16 rows are adjacent.
//
// Compiled into objects for instruction sets that the host may not have: see cpu/isa_namespace.h.
#pragma once

#include <cstdint>

#include "cpu/code_tables.h"
#include "cpu/format_list.h"
#include "cpu/isa_namespace.h"

namespace ballast {

// The version of this layout, which files of packed weights store. Raise it with every change of the layout;
// tests/kernels/test_panel_files.py compares the bytes.
constexpr int kPanelLayoutVersion = 1;

constexpr int kPanelRows = 16;
constexpr int kGroupCols = 32;
constexpr int kGroupQuads = 8;
constexpr int kQuadBytes = 64;
// Groups that share a block scale in formats with 256 weights per block.
constexpr int kSuperGroupsLog2 = 3;
constexpr int kSuperGroups = 1 << kSuperGroupsLog2;
// The 64 quads of a super-block, five per line.
constexpr int kTritsPerByte = 5;
constexpr int kTritLines = (kSuperGroups * kGroupQuads + kTritsPerByte - 1) / kTritsPerByte;

enum class Scales {
  kFlat,     // half-precision scale per group (and minimum)
  kPowers,   // byte per group: exponent of a power of two
  kE4M3,     // byte per sub-block: unsigned float, four bits of exponent and three of mantissa
  kNested,   // half-precision scale per super-block, times a byte per sub-block (also minima)
  kNibbles,  // the same, with scale and minimum of a sub-block in the two nibbles of a byte
  kBlock,    // half-precision scale per super-block
  // A half-precision scale per super-block, times 2 n + 1 per sub-block. n is
  kOddNibbles,  // a nibble; a byte holds two: sub-blocks of one group, or two groups
  kOddInCodes,  // in the signs of a group, or in the high bits of its points
};

inline namespace BALLAST_ISA_NAMESPACE {

// A weight is scale * (code - offset), or scale * code with minimum added (flat) or subtracted (nested), or
// scale * step[code] (code_tables.h).
struct QuantLayout {
  int bits;
  int sub_block;  // columns per scale: 16 or 32
  int offset;     // power of two, or 0
  Scales scales;
  bool has_minimum;
  CodeTable table;  // indexed by codes

  // The weights of the format's block in a file: one group or two with their own scales, or a super-block.
  constexpr int block_weights() const {
    return kGroupCols * (scales == Scales::kE4M3 ? 2 : is_flat() ? 1 : kSuperGroups);
  }
  // Whether each group has its own scales and shares none in a super-block.
  constexpr bool is_flat() const {
    return scales == Scales::kFlat || scales == Scales::kPowers || scales == Scales::kE4M3;
  }
  constexpr bool has_table() const { return table == CodeTable::kIQ4 || table == CodeTable::kE2M1; }
  constexpr bool has_trits() const { return table == CodeTable::kTrits; }
  constexpr Grid grid() const { return grid_of(table); }
  constexpr bool has_grid() const { return grid().points != nullptr; }
  // Whether groups are always decoded to memory before they are multiplied, even with few tokens.
  constexpr bool is_decoded_first() const { return has_grid() || has_trits(); }
  constexpr bool is_wide() const { return bits == 8 || has_table(); }
  constexpr int group_bytes() const {
    if (has_trits()) return kTritLines * kQuadBytes / kSuperGroups;
    if (has_grid()) return high_plane() + kPanelRows * grid().high_bytes;
    return bits * kGroupCols * kPanelRows / 8;
  }
  // The offsets of the planes of a group of points.
  constexpr int sign_plane() const { return kPanelRows * kGroupCols / grid().weights; }
  constexpr int high_plane() const { return sign_plane() + (grid().sign_bits > 0 ? kQuadBytes : 0); }
  constexpr int offset_log2() const {
    int log2 = 0;
    while (offset > 1 << log2) ++log2;
    return log2;
  }
  constexpr int subs_per_group() const { return kGroupCols / sub_block; }
  // Whether the integer products of a super-block can be added up before scaling. Groups have codes of at
  // most five bits, and a scale and a minimum of six bits.
  constexpr bool sums_whole_blocks() const {
    return scales == Scales::kNested && has_minimum && sub_block == kGroupCols && bits <= 5;
  }
  // Whether codes times the scale of their sub-block are bytes, so that a super-block adds up in integers:
  // codes of two bits with scales of four, or of three bits (plus 4) with signed scales of six.
  constexpr bool scales_codes() const {
    return scales == Scales::kNibbles || (scales == Scales::kNested && bits == 3 && offset == 4);
  }
  // Whether these products are signed and stored negated.
  constexpr bool negates_codes() const { return scales_codes() && offset > 0; }
  // Whether weights are signed bytes with one scale per group.
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

// One kernel per kind. Float panels are [column][16 rows].
enum class PanelKind : int {
#define BALLAST_KIND(name, ...) k##name,
  BALLAST_FORMATS(BALLAST_KIND, BALLAST_KIND)
#undef BALLAST_KIND
};

#define BALLAST_ONE(...) +1
constexpr int kNumPanelKinds = 0 BALLAST_FORMATS(BALLAST_ONE, BALLAST_ONE);
#undef BALLAST_ONE

// 32 activations of one token, rounded to integers of one or two bytes: quants[i], or kDigitBase * quants[i]
// + quants[32 + i] with the kDigitBase of the instruction set.
template <int kBytes>
struct alignas(64) ActivationBlock {
  int8_t quants[kGroupCols * kBytes];
  float scale;
  int32_t negative_sum;  // of the integers, like all sums
  float sum;
  int32_t negative_half_sums[2];  // 0…15, 16…31
  float half_sums[2];
  int16_t negative_half_digits[kBytes][2];  // sums of the first and, with two bytes, of the second byte
};
static_assert(sizeof(ActivationBlock<1>) == 64 && sizeof(ActivationBlock<2>) == 128);

// The largest integer of one and of two bytes, by number of bytes.
constexpr float kMostActivation[] = {0.0f, 127.0f, 127.0f * 255.0f + 127.0f};

inline namespace BALLAST_ISA_NAMESPACE {

// Adjacent blocks of activations that share a scale, in rows of `cols`: as in a super-block, or the largest
// power of two that divides the row evenly.
constexpr int64_t blocks_per_scale(int64_t cols) {
  int64_t blocks = kSuperGroups;
  while (cols / kGroupCols % blocks != 0) blocks /= 2;
  return blocks;
}

}  // namespace BALLAST_ISA_NAMESPACE

}  // namespace ballast
