// Products of panels with activations, written on the names of an instruction set's simd.h. Included once by
// each kernels.cpp; everything has internal linkage, so that no copy of it can be taken by the linker for
// code that runs elsewhere.
//
// Order of the float sums, for every row and token and whatever the number of tokens. Columns whose
// activations share a scale (PanelRun::blocks_per_scale) form a sum of their own: sub-block after
// sub-block, integer dot product times weight scale added with one rounding, then the minimum's part. Such
// sums, times the activations' scale, are added up with one rounding each. Where codes are scaled first
// (QuantLayout::scales_codes), a super-block is one sub-block.
#pragma once

#include "cpu/kernels.h"
#include "cpu/shared/grids-inl.h"
#include "cpu/shared/integers-inl.h"
#include "cpu/shared/prefetch-inl.h"
#include "cpu/shared/scaled_codes-inl.h"
#include "cpu/shared/trits-inl.h"

namespace ballast {
namespace {

// Vectors are numbered through the rows of neighbouring panels: kPanelVectors of each.
constexpr int panel_index(int vector) { return vector / kPanelVectors; }
constexpr int part_index(int vector) { return vector % kPanelVectors; }

// Quad kQuad's codes, from the planes of a group.
template <int kQuad>
BALLAST_INLINE Bytes nibble_quad(const uint8_t* plane) {
  const Bytes line = load_bytes(plane + kQuad % 4 * kQuadBytes);
  return and_bytes(kQuad < 4 ? line : shift_right<4>(line), bytes_of(0x0f));
}

// Two bits, moved to kTo, kTo + 1.
template <int kQuad, int kTo>
BALLAST_INLINE Bytes pair_quad(const uint8_t* plane) {
  const Bytes line = load_bytes(plane + kQuad / 4 * kQuadBytes);
  constexpr int kFrom = kQuad % 4 * 2;
  constexpr int kLeft = kTo > kFrom ? kTo - kFrom : 0;
  constexpr int kRight = kFrom > kTo ? kFrom - kTo : 0;
  return and_bytes(shift_right<kRight>(shift_left<kLeft>(line)), bytes_of(3 << kTo));
}

// One bit, moved to kTo.
template <int kQuad, int kTo>
BALLAST_INLINE Bytes bit_quad(const uint8_t* plane) {
  constexpr int kLeft = kTo > kQuad ? kTo - kQuad : 0;
  constexpr int kRight = kQuad > kTo ? kQuad - kTo : 0;
  return and_bytes(shift_right<kRight>(shift_left<kLeft>(load_bytes(plane))), bytes_of(1 << kTo));
}

constexpr int kNibblePlane = 4 * kQuadBytes;
constexpr int kPairPlane = 2 * kQuadBytes;

template <const QuantLayout& kLayout, int kQuad>
BALLAST_INLINE Bytes decode_quad(const uint8_t* group) {
  constexpr int kBits = kLayout.bits;
  if constexpr (kLayout.has_table()) return table_steps<kLayout.table>(nibble_quad<kQuad>(group));
  if constexpr (kBits == 2) return pair_quad<kQuad, 0>(group);
  if constexpr (kBits == 3)
    return or_bytes(pair_quad<kQuad, 0>(group), bit_quad<kQuad, 2>(group + kPairPlane));
  if constexpr (kBits == 4) return nibble_quad<kQuad>(group);
  if constexpr (kBits == 5)
    return or_bytes(nibble_quad<kQuad>(group), bit_quad<kQuad, 4>(group + kNibblePlane));
  if constexpr (kBits == 6)
    return or_bytes(nibble_quad<kQuad>(group), pair_quad<kQuad, 4>(group + kNibblePlane));
  if constexpr (kBits == 8) return wide_codes(load_bytes(group + kQuad * kQuadBytes));
}

// What the scales of a block's groups have in common: where they are, and for super-blocks what they are
// multiples of.
struct CommonScales {
  const uint8_t* first;
  Floats scale;
  Floats minimum;
};

// Scales of the sub-blocks of a group, and their minima with the sign of an addend.
template <const QuantLayout& kLayout, bool kScalesCodes = kLayout.scales_codes()>
struct GroupScales {
  Floats scale[kLayout.subs_per_group()];
  Floats minimum[kLayout.subs_per_group()];
};
template <const QuantLayout& kLayout>
struct GroupScales<kLayout, true> {
  const uint8_t* bytes;
};

constexpr int kHalvesBytes = 2 * kPanelRows;

// Of the groups from `begin` on, to the end of its super-block if it has one, for the rows of a vector.
template <const QuantLayout& kLayout>
BALLAST_INLINE CommonScales common_scales(const uint8_t* panel, int part, int64_t begin) {
  if constexpr (kLayout.is_flat()) {
    constexpr int kScaleBytes = kLayout.scales == Scales::kFlat ? 2 : 1;
    return {panel + begin * kLayout.scale_stride() + part * kVectorRows * kScaleBytes, zero_floats(),
            zero_floats()};
  }
  const uint8_t* const record = panel + (begin >> kSuperGroupsLog2) * kLayout.scale_stride();
  const uint8_t* const halves = record + part * kVectorRows * 2;
  const uint8_t* const bytes = record + kHalvesBytes * (kLayout.has_minimum ? 2 : 1) + part * kVectorRows;
  return {bytes, halves_to_floats(halves),
          kLayout.has_minimum ? halves_to_floats(halves + kHalvesBytes) : zero_floats()};
}

// Of the group that is `index` groups behind the first that `common` is of.
template <const QuantLayout& kLayout>
BALLAST_INLINE void decode_scales(const CommonScales& common, int64_t index, GroupScales<kLayout>& out) {
  constexpr int kSubs = kLayout.subs_per_group();
  if constexpr (kLayout.scales_codes()) {
    out.bytes = common.first + index * kSubs * kPanelRows;
  } else if constexpr (kLayout.scales == Scales::kPowers) {
    out.scale[0] = powers_to_floats(common.first + index * kLayout.scale_stride());
  } else if constexpr (kLayout.scales == Scales::kE4M3) {
    const uint8_t* record = common.first + index * kLayout.scale_stride();
    for (int sub = 0; sub < kSubs; ++sub) out.scale[sub] = e4m3_to_floats(record + sub * kPanelRows);
  } else if constexpr (kLayout.scales == Scales::kFlat) {
    const uint8_t* record = common.first + index * kLayout.scale_stride();
    out.scale[0] = halves_to_floats(record);
    if constexpr (kLayout.has_minimum) out.minimum[0] = halves_to_floats(record + kHalvesBytes);
  } else {
    if constexpr (kLayout.scales == Scales::kBlock) {
      out.scale[0] = common.scale;
      return;
    }
    const uint8_t* subs = common.first + index * kSubs * kPanelRows;
    for (int sub = 0; sub < kSubs; ++sub) {
      const Ints bytes = load_int8(subs + sub * kPanelRows);
      out.scale[sub] = multiply(common.scale, to_floats(bytes));
      if constexpr (kLayout.has_minimum) {
        constexpr int kMinima = kSuperGroups * kSubs * kPanelRows;
        const Ints minima = load_int8(subs + kMinima + sub * kPanelRows);
        out.minimum[sub] = multiply(common.minimum, to_floats(minima));
      }
    }
  }
}

template <const QuantLayout& kLayout>
BALLAST_INLINE Ints first_sum(int32_t negative_sum) {
  constexpr int kBias = bias_of(kLayout);
  if constexpr (kBias > 0) return shift_left_ints<log2_of(kBias)>(broadcast_int(negative_sum));
  return zero_ints();
}

template <const QuantLayout& kLayout>
BALLAST_INLINE Floats add_minimum(Floats minimum, float sum_of_numbers, Floats sum) {
  if constexpr (!kLayout.has_minimum) return sum;
  if constexpr (kLayout.scales == Scales::kFlat)
    return multiply_add(minimum, broadcast_float(sum_of_numbers), sum);
  return multiply_subtract_from(minimum, broadcast_float(sum_of_numbers), sum);
}

// Of columns. IndexRange would bring functions that other objects define too.
struct Groups {
  int64_t begin;
  int64_t end;
};

// Panels as they lie, one behind the other: decoded as they are multiplied.
template <const QuantLayout& kLayout, int kVectors>
struct PackedPanels {
  static constexpr int kPanels = kVectors / kPanelVectors;

  PackedPanels(const PanelRun& run, int64_t index, int64_t num_passes)
      : first(panel_of(run, index)),
        panel_bytes(run.panel_bytes),
        codes(first + kLayout.scale_bytes(run.cols)) {
    const uint8_t* const next = index + kPanels < run.count ? panel_of(run, index + kPanels) : run.next;
    const bool asks_for_own = num_passes == 1 || index == 0 || kLayout.is_decoded_first();
    asking = asks_for_own ? asking_ahead(run, first, next) : asking_for_nothing();
    // One pass has no time to spare for what comes next.
    if (num_passes > 1 && next != nullptr && !kLayout.is_decoded_first())
      ahead = {next, num_passes, num_passes, run.prefetching.to};
  }

  const uint8_t* const first;
  const int64_t panel_bytes;
  const uint8_t* const codes;
  Asking asking;
  Ahead ahead{};
};

template <int kVectors>
struct PackedBlock {
  int64_t begin;  // group
  CommonScales scales[kVectors];
};

// The largest code, or magnitude of a signed one, as it is multiplied.
constexpr int largest_code(const QuantLayout& layout) {
  return is_signed(layout) ? 128 : layout.is_wide() ? kLargestWideCode : (1 << layout.bits) - 1;
}

template <const QuantLayout& kLayout, int kVectors>
struct PackedGroup {
  static constexpr int kLargestCode = largest_code(kLayout);

  const uint8_t* codes;
  int64_t panel_bytes;
  GroupScales<kLayout> scales[kVectors];
  const uint8_t* asked;
  PrefetchTarget to;
};

// What group_at needs of the groups from `begin` on, at most to the end of a super-block.
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE PackedBlock<kVectors> block_at(const PackedPanels<kLayout, kVectors>& panels, int64_t begin) {
  PackedBlock<kVectors> block;
  block.begin = begin;
#pragma GCC unroll 4
  for (int vector = 0; vector < kVectors; ++vector)
    block.scales[vector] = common_scales<kLayout>(panels.first + panel_index(vector) * panels.panel_bytes,
                                                  part_index(vector), begin);
  return block;
}

template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE PackedGroup<kLayout, kVectors> group_at(const PackedPanels<kLayout, kVectors>& panels,
                                                       const PackedBlock<kVectors>& block, int64_t index) {
  PackedGroup<kLayout, kVectors> group;
  group.codes = panels.codes + index * kLayout.group_bytes();
  group.panel_bytes = panels.panel_bytes;
  group.asked = asked_at<kLayout>(panels.asking, index);
  group.to = panels.asking.to;
#pragma GCC unroll 4
  for (int vector = 0; vector < kVectors; ++vector)
    decode_scales<kLayout>(block.scales[vector], index - block.begin, group.scales[vector]);
  return group;
}

template <int kQuad, const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE void ask_ahead(const PackedGroup<kLayout, kVectors>& group) {
  prefetch_part<kLayout, kVectors / kPanelVectors, kQuad>(group.asked, group.panel_bytes, group.to);
}
template <int kQuad, const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Bytes quad_of(const PackedGroup<kLayout, kVectors>& group, int vector) {
  return decode_quad<kLayout, kQuad>(group.codes + panel_index(vector) * group.panel_bytes +
                                     part_index(vector) * kPartBytes);
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Floats scale_of(const PackedGroup<kLayout, kVectors>& group, int vector, int sub) {
  return group.scales[vector].scale[sub];
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Floats minimum_of(const PackedGroup<kLayout, kVectors>& group, int vector, int sub) {
  return group.scales[vector].minimum[sub];
}

// Of a super-block that is summed up in whole numbers: what its sums are multiples of, and each group's bytes
// of scales (pair_of_scales).
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Floats block_scale(const PackedPanels<kLayout, kVectors>&, const PackedBlock<kVectors>& block,
                                  int vector) {
  return block.scales[vector].scale;
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Floats block_minimum(const PackedPanels<kLayout, kVectors>&,
                                    const PackedBlock<kVectors>& block, int vector) {
  return block.scales[vector].minimum;
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Bytes pair_at(const PackedPanels<kLayout, kVectors>&, const PackedBlock<kVectors>& block,
                             int64_t index, int vector) {
  return pair_of_scales(block.scales[vector].first +
                        (index - block.begin) * kLayout.subs_per_group() * kPanelRows);
}

// A group whose codes are scaled as they are decoded.
template <const QuantLayout& kLayout, int kVectors>
struct ScaledGroup {
  static constexpr int kLargestCode = largest_scaled_code(kLayout);

  PackedGroup<kLayout, kVectors> packed;
  CodeFactors<kLayout> factors[kVectors];
};

template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE ScaledGroup<kLayout, kVectors> with_factors(const PackedGroup<kLayout, kVectors>& packed) {
  ScaledGroup<kLayout, kVectors> group;
  group.packed = packed;
#pragma GCC unroll 4
  for (int vector = 0; vector < kVectors; ++vector)
    decode_factors<kLayout>(packed.scales[vector].bytes, group.factors[vector]);
  return group;
}
template <int kQuad, const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE void ask_ahead(const ScaledGroup<kLayout, kVectors>& group) {
  ask_ahead<kQuad>(group.packed);
}
template <int kQuad, const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Bytes quad_of(const ScaledGroup<kLayout, kVectors>& group, int vector) {
  return scale_codes<kLayout, kQuad>(quad_of<kQuad>(group.packed, vector), group.factors[vector]);
}

// The layouts of decoded pieces. Many formats share their kernels.
static constexpr QuantLayout kDecodedSubs32{8, 32, 128, Scales::kNested, false, CodeTable::kNone};
static constexpr QuantLayout kDecodedTrits{2, 32, 1, Scales::kNested, false, CodeTable::kNone};
static constexpr QuantLayout kDecodedSubs16{8, 16, 128, Scales::kNested, false, CodeTable::kNone};

template <const QuantLayout& kLayout>
constexpr const QuantLayout& decoded_layout() {
  return kLayout.has_trits()             ? kDecodedTrits
         : kLayout.subs_per_group() == 1 ? kDecodedSubs32
                                         : kDecodedSubs16;
}

// Groups in a piece: with tokens of as many columns it stays in the nearest cache. Whole super-blocks.
constexpr int kPieceGroups = 16;

// A piece of some panels' columns, decoded once for many tokens.
template <const QuantLayout& kLayout, int kVectors>
struct DecodedPiece {
  static constexpr int kSubs = kLayout.scales_codes() ? 1 : kLayout.subs_per_group();
  static constexpr int kScales = kLayout.scales_codes() ? kPieceGroups / kSuperGroups : kPieceGroups;

  int64_t first;  // group
  alignas(64) uint8_t codes[kPieceGroups][kGroupQuads][kVectors][kPartBytes];
  alignas(64) float scale[kScales][kSubs][kVectors][kVectorRows];
  alignas(64) float minimum[kLayout.has_minimum ? kScales : 1][kSubs][kVectors][kVectorRows];
  alignas(64) uint8_t pairs[kLayout.scales_codes() ? kPieceGroups : 1][kVectors][kPartBytes];
};

template <const QuantLayout& kLayout, int kVectors>
struct DecodedGroup {
  static constexpr int kLargestCode =
      kLayout.scales_codes() && multiplies_scaled_codes<kLayout>() ? largest_scaled_code(kLayout)
      : &kLayout == &kDecodedSubs32 || &kLayout == &kDecodedSubs16 ? kLargestPoint
                                                                   : largest_code(kLayout);

  const DecodedPiece<kLayout, kVectors>& piece;
  int64_t index;
};

struct DecodedBlock {
  int64_t index;
};

template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE DecodedBlock block_at(const DecodedPiece<kLayout, kVectors>& piece, int64_t begin) {
  return {(begin - piece.first) >> kSuperGroupsLog2};
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Floats block_scale(const DecodedPiece<kLayout, kVectors>& piece, const DecodedBlock& block,
                                  int vector) {
  return load_floats(piece.scale[block.index][0][vector]);
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Floats block_minimum(const DecodedPiece<kLayout, kVectors>& piece, const DecodedBlock& block,
                                    int vector) {
  return load_floats(piece.minimum[block.index][0][vector]);
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Bytes pair_at(const DecodedPiece<kLayout, kVectors>& piece, const DecodedBlock&, int64_t index,
                             int vector) {
  return load_bytes(piece.pairs[index - piece.first][vector]);
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE DecodedGroup<kLayout, kVectors> group_at(const DecodedPiece<kLayout, kVectors>& piece,
                                                        const DecodedBlock&, int64_t index) {
  return {piece, index - piece.first};
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE DecodedGroup<kLayout, kVectors> with_factors(const DecodedGroup<kLayout, kVectors>& group) {
  return group;
}
template <int kQuad, const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE void ask_ahead(const DecodedGroup<kLayout, kVectors>&) {}
template <int kQuad, const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Bytes quad_of(const DecodedGroup<kLayout, kVectors>& group, int vector) {
  return load_bytes(group.piece.codes[group.index][kQuad][vector]);
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Floats scale_of(const DecodedGroup<kLayout, kVectors>& group, int vector, int sub) {
  return load_floats(group.piece.scale[group.index][sub][vector]);
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Floats minimum_of(const DecodedGroup<kLayout, kVectors>& group, int vector, int sub) {
  return load_floats(group.piece.minimum[kLayout.has_minimum ? group.index : 0][sub][vector]);
}

template <int kVectors, int kQuad = 0, class Group>
BALLAST_INLINE void decode_quads(const Group& group, uint8_t (*out)[kVectors][kPartBytes]) {
  if constexpr (kQuad < kGroupQuads) {
    if constexpr (kQuad % 2 == 0) ask_ahead<kQuad>(group);
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector)
      store_codes(out[kQuad][vector], quad_of<kQuad>(group, vector));
    decode_quads<kVectors, kQuad + 1>(group, out);
  }
}

template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE void store_scales(const PackedGroup<kLayout, kVectors>& group, int64_t index,
                                 DecodedPiece<kLayout, kVectors>& out) {
#pragma GCC unroll 4
  for (int vector = 0; vector < kVectors; ++vector) {
    for (int sub = 0; sub < kLayout.subs_per_group(); ++sub) {
      store_floats(out.scale[index][sub][vector], scale_of(group, vector, sub));
      if constexpr (kLayout.has_minimum)
        store_floats(out.minimum[index][sub][vector], minimum_of(group, vector, sub));
    }
  }
}

template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE void store_block_scales(const PackedPanels<kLayout, kVectors>& panels,
                                       const PackedBlock<kVectors>& block, int64_t index,
                                       DecodedPiece<kLayout, kVectors>& out) {
  const int64_t of_block = (index - out.first) >> kSuperGroupsLog2;
#pragma GCC unroll 4
  for (int vector = 0; vector < kVectors; ++vector) {
    store_floats(out.scale[of_block][0][vector], block_scale(panels, block, vector));
    if constexpr (kLayout.has_minimum)
      store_floats(out.minimum[of_block][0][vector], block_minimum(panels, block, vector));
    store_codes(out.pairs[index - out.first][vector], pair_at(panels, block, index, vector));
  }
}

template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE void decode_piece(const PackedPanels<kLayout, kVectors>& panels, Groups groups,
                                 DecodedPiece<kLayout, kVectors>& out) {
  out.first = groups.begin;
  for (int64_t index = 0; index < groups.end - groups.begin; ++index) {
    const int64_t begin = groups.begin + index / kSuperGroups * kSuperGroups;
    const auto block = block_at(panels, begin);
    const auto group = group_at(panels, block, groups.begin + index);
    if constexpr (kLayout.scales_codes()) {
      if constexpr (multiplies_scaled_codes<kLayout>())
        decode_quads<kVectors>(with_factors(group), out.codes[index]);
      else
        decode_quads<kVectors>(group, out.codes[index]);
      store_block_scales(panels, block, groups.begin + index, out);
    } else {
      decode_quads<kVectors>(group, out.codes[index]);
      store_scales(group, index, out);
    }
  }
}

template <const QuantLayout& kLayout>
BALLAST_INLINE Floats decoded_scale(const uint8_t* record, const uint8_t* group, int part, int64_t index,
                                    int sub) {
  if constexpr (kLayout.has_trits())
    return halves_to_floats(record + part * kVectorRows * 2);
  else
    return point_scale<kLayout>(record, group, part, index, sub);
}

template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE void decode_first(const PackedPanels<kLayout, kVectors>& panels, Groups groups,
                                 DecodedPiece<decoded_layout<kLayout>(), kVectors>& out) {
  constexpr int kStride = kVectors * kPartBytes;
  out.first = groups.begin;
  for (int vector = 0; vector < kVectors; ++vector) {
    const int part = part_index(vector);
    const int64_t from = panel_index(vector) * panels.panel_bytes;
    const uint8_t* group = panels.codes + from + groups.begin * kLayout.group_bytes();
    if constexpr (kLayout.has_trits()) {
      for (int64_t at = 0; at < groups.end - groups.begin; at += kSuperGroups)
        decode_trits<kStride>(group + at * kLayout.group_bytes(), part, out.codes[at][0][vector]);
    } else {
      decode_groups<kLayout, kStride>(group, groups.end - groups.begin, part, out.codes[0][0][vector]);
    }
    for (int64_t at = groups.begin; at < groups.end; ++at, group += kLayout.group_bytes()) {
      const uint8_t* const record = panels.first + from + (at >> kSuperGroupsLog2) * kLayout.scale_stride();
      if (part == 0)
        prefetch(asked_at<kLayout>(panels.asking, at) + from, share_bytes<kLayout>(), panels.asking.to);
      for (int sub = 0; sub < kLayout.subs_per_group(); ++sub)
        store_floats(out.scale[at - groups.begin][sub][vector],
                     decoded_scale<kLayout>(record, group, part, at % kSuperGroups, sub));
    }
  }
}

// Sums that a dot product is formed in: with few tokens one alone would have to wait for itself.
template <const QuantLayout& kLayout, int kVectors, int kTokens>
constexpr int num_chains() {
  return kVectors * kTokens <= 2 && kLayout.subs_per_group() == 1 ? 2 : 1;
}

// words [token][plane][vector] = the products of quads kQuad…kEnd, two of each quad in a word.
template <bool kSigned, int kVectors, int kTokens, int kBytes, int kQuad, int kEnd, bool kIsFirst,
          class Group>
BALLAST_INLINE void sum_in_words(const Group& group, const ActivationBlock<kBytes>* const* blocks,
                                 int64_t index, Bytes (*words)[kBytes][kVectors]) {
  if constexpr (kQuad < kEnd) {
    if constexpr (kQuad % 2 == 0) ask_ahead<kQuad>(group);
    Bytes codes[kVectors];
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) codes[vector] = quad_of<kQuad>(group, vector);
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 2
      for (int plane = 0; plane < kBytes; ++plane) {
        const Bytes four = broadcast_four(blocks[token][index].quants + plane * kGroupCols + 4 * kQuad);
#pragma GCC unroll 4
        for (int vector = 0; vector < kVectors; ++vector) {
          add_in_words<kSigned>(words[token][plane][vector], kIsFirst, codes[vector], four);
        }
      }
    }
    sum_in_words<kSigned, kVectors, kTokens, kBytes, kQuad + 1, kEnd, false>(group, blocks, index, words);
  }
}

// dots [token][0][0][vector] += quads kQuad…kEnd, with activations that join_digits has made.
template <int kVectors, int kTokens, int kQuad, int kEnd, class Group, class Dots>
BALLAST_INLINE void add_quads_of_numbers(const Group& group, const int16_t (&numbers)[kTokens][kGroupCols],
                                         Dots* dots) {
  if constexpr (kQuad < kEnd) {
    if constexpr (kQuad % 2 == 0) ask_ahead<kQuad>(group);
    Bytes even[kVectors];
    Bytes odd[kVectors];
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      const Bytes quad = quad_of<kQuad>(group, vector);
      even[vector] = high_bytes_of_words(shift_left<8>(quad));
      odd[vector] = high_bytes_of_words(quad);
    }
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token)
      add_quad_of_numbers(dots[token][0][0], even, odd, numbers[token] + 2 * kQuad);
    add_quads_of_numbers<kVectors, kTokens, kQuad + 1, kEnd>(group, numbers, dots);
  }
}

// Quads kQuad…kEnd of a group of some vectors: each decoded once for all tokens, each activation loaded once
// for all vectors. dots [token][chain][plane][vector], a plane being one byte of the activations.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kBytes, int kQuad, int kEnd, class Group>
BALLAST_INLINE void add_quads(const Group& group, const ActivationBlock<kBytes>* const* blocks, int64_t index,
                              Ints (*dots)[num_chains<kLayout, kVectors, kTokens>()][kBytes][kVectors]) {
  constexpr int kLargest = Group::kLargestCode;
  constexpr int kRunEnd = kQuad + static_cast<int>(smaller(quads_in_words(kLargest), kEnd - kQuad));
  if constexpr (kRunEnd - kQuad > 2) {
    Bytes words[kTokens][kBytes][kVectors];
    sum_in_words<is_signed(kLayout), kVectors, kTokens, kBytes, kQuad, kRunEnd, true>(group, blocks, index,
                                                                                      words);
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 2
      for (int plane = 0; plane < kBytes; ++plane) {
#pragma GCC unroll 4
        for (int vector = 0; vector < kVectors; ++vector) {
          Ints& dot = dots[token][0][plane][vector];
          dot = add_word_products(dot, words[token][plane][vector], words_of(1));
        }
      }
    }
    add_quads<kLayout, kVectors, kTokens, kBytes, kRunEnd, kEnd>(group, blocks, index, dots);
  } else if constexpr (kQuad < kEnd) {
    constexpr int kChain = kQuad / 2 % num_chains<kLayout, kVectors, kTokens>();
    ask_ahead<kQuad>(group);
    using Codes = decltype(quad_of<kQuad>(group, 0));
    Codes first[kVectors];
    Codes second[kVectors];
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      first[vector] = quad_of<kQuad>(group, vector);
      second[vector] = quad_of<kQuad + 1>(group, vector);
    }
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 2
      for (int plane = 0; plane < kBytes; ++plane) {
        add_two_quads<is_signed(kLayout), kLargest, kVectors>(
            dots[token][kChain][plane], first, second,
            blocks[token][index].quants + plane * kGroupCols + 4 * kQuad);
      }
    }
    add_quads<kLayout, kVectors, kTokens, kBytes, kQuad + 2, kEnd>(group, blocks, index, dots);
  }
}

// dots [chain][plane][vector] of one token, to be added to.
template <int kVectors, int kChains, int kBytes>
BALLAST_INLINE void begin_dots(Ints first, Ints (&dots)[kChains][kBytes][kVectors]) {
#pragma GCC unroll 4
  for (int vector = 0; vector < kVectors; ++vector) {
#pragma GCC unroll 2
    for (auto& chain : dots) {
      chain[0][vector] = zero_ints();
      chain[kBytes - 1][vector] = zero_ints();
    }
    dots[0][kBytes - 1][vector] = first;
  }
}

// What they come to.
template <int kVectors, int kChains, int kBytes>
BALLAST_INLINE Ints end_dots(const Ints (&dots)[kChains][kBytes][kVectors], int vector) {
  const auto sum_of_chains = [&](int plane) {
    const Ints one = dots[0][plane][vector];
    return kChains == 1 ? one : add_ints(one, dots[kChains - 1][plane][vector]);
  };
  const Ints dot = sum_of_chains(kBytes - 1);
  if constexpr (kBytes == 2) return add_ints(dot, times_digit_base(sum_of_chains(0)));
  return dot;
}

// sums [token][vector] += a sub-block.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kSub, int kBytes, class Group>
BALLAST_INLINE void add_sub_block(const Group& group, const ActivationBlock<kBytes>* const* blocks,
                                  int64_t index, Floats (*sums)[kVectors]) {
  constexpr bool kWhole = kLayout.subs_per_group() == 1;
  constexpr int kQuads = kGroupQuads / kLayout.subs_per_group();
  constexpr int kFirst = kSub * kQuads;
  constexpr int kChains = num_chains<kLayout, kVectors, kTokens>();
  constexpr bool kJoins = joins_digits(kLayout, kBytes);
  Ints dots[kTokens][kChains][kJoins ? 1 : kBytes][kVectors];
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
    const ActivationBlock<kBytes>& block = blocks[token][index];
    begin_dots(first_sum<kLayout>(kWhole ? block.negative_sum : block.negative_half_sums[kSub]), dots[token]);
  }
  if constexpr (kJoins) {
    alignas(kPartBytes) int16_t numbers[kTokens][kGroupCols];
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) join_digits(blocks[token][index].quants, numbers[token]);
    add_quads_of_numbers<kVectors, kTokens, kFirst, kFirst + kQuads>(group, numbers, dots);
  } else {
    add_quads<kLayout, kVectors, kTokens, kBytes, kFirst, kFirst + kQuads>(group, blocks, index, dots);
  }
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
    const ActivationBlock<kBytes>& block = blocks[token][index];
    const float sum_of_numbers = kWhole ? block.sum : block.half_sums[kSub];
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      Floats& sum = sums[token][vector];
      sum = multiply_add(to_floats(end_dots(dots[token], vector)), scale_of(group, vector, kSub), sum);
      if constexpr (kLayout.has_minimum)
        sum = add_minimum<kLayout>(minimum_of(group, vector, kSub), sum_of_numbers, sum);
    }
  }
}

// A group's half sums of one byte of the activations.
template <int kBytes>
BALLAST_INLINE Bytes half_digits(const ActivationBlock<kBytes>& block, int plane) {
  return broadcast_pair(block.negative_half_digits[plane]);
}

// Whether sub-blocks are scaled after they are multiplied, rather than codes before: a sub-block's dot
// product with either byte of the activations is a word, so that it is scaled and added at once. With few
// tokens that is less, and where signed codes take longer to multiply it always is.
template <int kBytes, const QuantLayout& kLayout, int kVectors>
constexpr bool scales_dots(const PackedPanels<kLayout, kVectors>*, int num_tokens) {
  return !multiplies_scaled_codes<kLayout>() || kVectors * num_tokens * kBytes <= 4;
}
template <int kBytes, const QuantLayout& kLayout, int kVectors>
constexpr bool scales_dots(const DecodedPiece<kLayout, kVectors>*, int) {
  return !multiplies_scaled_codes<kLayout>();
}

// totals [token][1][plane][vector] += a sub-block.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kBytes, int kSub, class Group>
BALLAST_INLINE void add_scaled_dots(const Group& group, const ActivationBlock<kBytes>* const* blocks,
                                    int64_t index, const Bytes* pairs, Ints (*totals)[1][kBytes][kVectors]) {
  constexpr int kQuads = kGroupQuads / kLayout.subs_per_group();
  constexpr int kFirst = kSub * kQuads;
  Ints dots[kTokens][num_chains<kLayout, kVectors, kTokens>()][kBytes][kVectors];
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) begin_dots(zero_ints(), dots[token]);
  add_quads<kLayout, kVectors, kTokens, kBytes, kFirst, kFirst + kQuads>(group, blocks, index, dots);
#pragma GCC unroll 4
  for (int vector = 0; vector < kVectors; ++vector) {
    const Ints scale = word_of_pair<kSub>(scales_of_pair<kLayout>(pairs[vector]));
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 2
      for (int plane = 0; plane < kBytes; ++plane) {
        Ints& total = totals[token][0][plane][vector];
        total = add_word_products(total, dots[token][0][plane][vector], scale);
      }
    }
  }
}

// The same sums as sum_scaled_block's.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kBytes, class Weights>
BALLAST_INLINE void sum_block_of_dots(const Weights& weights, int64_t begin, Ahead& ahead,
                                      const ActivationBlock<kBytes>* const* blocks,
                                      Floats (*sums)[kVectors]) {
  Ints totals[kTokens][1][kBytes][kVectors];
  Ints minima[kTokens][1][kBytes][kVectors];
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
    begin_dots(zero_ints(), totals[token]);
    begin_dots(zero_ints(), minima[token]);
  }
  const auto block = block_at(weights, begin);
  for (int64_t index = begin; index < begin + kSuperGroups; ++index) {
    if (--ahead.wait == 0) prefetch_share<kLayout, kVectors / kPanelVectors>(ahead);
    const auto group = group_at(weights, block, index);
    Bytes pairs[kVectors];
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) pairs[vector] = pair_at(weights, block, index, vector);
    add_scaled_dots<kLayout, kVectors, kTokens, kBytes, 0>(group, blocks, index, pairs, totals);
    add_scaled_dots<kLayout, kVectors, kTokens, kBytes, 1>(group, blocks, index, pairs, totals);
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      const Bytes words = offsets_of_pair<kLayout>(pairs[vector]);
#pragma GCC unroll 16
      for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 2
        for (int plane = 0; plane < kBytes; ++plane) {
          Ints& sum = kLayout.has_minimum ? minima[token][0][plane][vector] : totals[token][0][plane][vector];
          sum = add_word_products(sum, words, half_digits(blocks[token][index], plane));
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      Floats sum = multiply(to_floats(end_dots(totals[token], vector)), block_scale(weights, block, vector));
      if constexpr (kLayout.has_minimum)
        sum = multiply_add(to_floats(end_dots(minima[token], vector)), block_minimum(weights, block, vector),
                           sum);
      sums[token][vector] = sum;
    }
  }
}

// What sums of codes that were moved to be without a sign begin with.
template <const QuantLayout& kLayout, int kBytes>
BALLAST_INLINE Ints first_sum_of_block(const ActivationBlock<kBytes>* blocks) {
  if constexpr (!kLayout.negates_codes()) return zero_ints();
  int32_t negative_sum = 0;
  for (int64_t index = 0; index < kSuperGroups; ++index) negative_sum += blocks[index].negative_sum;
  return shift_left_ints<7>(broadcast_int(negative_sum));
}

// sums [token][vector] of a super-block whose codes are scaled. They are whole numbers below 2^31: 256
// products of 128 and a number of two bytes.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kBytes, class Weights>
BALLAST_INLINE void sum_scaled_block(const Weights& weights, int64_t begin, Ahead& ahead,
                                     const ActivationBlock<kBytes>* const* blocks, Floats (*sums)[kVectors]) {
  Ints dots[kTokens][num_chains<kLayout, kVectors, kTokens>()][kBytes][kVectors];
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token)
    begin_dots(first_sum_of_block<kLayout>(blocks[token] + begin), dots[token]);
  const auto block = block_at(weights, begin);
  for (int64_t index = begin; index < begin + kSuperGroups; ++index) {
    if (--ahead.wait == 0) prefetch_share<kLayout, kVectors / kPanelVectors>(ahead);
    const auto group = with_factors(group_at(weights, block, index));
    add_quads<kLayout, kVectors, kTokens, kBytes, 0, kGroupQuads>(group, blocks, index, dots);
  }
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      const Ints dot = end_dots(dots[token], vector);
      sums[token][vector] =
          multiply(to_floats(kLayout.negates_codes() ? subtract_ints(zero_ints(), dot) : dot),
                   block_scale(weights, block, vector));
    }
  }
  if constexpr (kLayout.has_minimum) {
    // Apart from the products, for the registers' sake.
    Ints minima[kTokens][1][kBytes][kVectors];
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) begin_dots(zero_ints(), minima[token]);
    for (int64_t index = begin; index < begin + kSuperGroups; ++index) {
#pragma GCC unroll 4
      for (int vector = 0; vector < kVectors; ++vector) {
        const Bytes words = minima_of_pair(pair_at(weights, block, index, vector));
#pragma GCC unroll 16
        for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 2
          for (int plane = 0; plane < kBytes; ++plane) {
            Ints& sum = minima[token][0][plane][vector];
            sum = add_word_products(sum, words, half_digits(blocks[token][index], plane));
          }
        }
      }
    }
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 4
      for (int vector = 0; vector < kVectors; ++vector)
        sums[token][vector] = multiply_add(to_floats(end_dots(minima[token], vector)),
                                           block_minimum(weights, block, vector), sums[token][vector]);
    }
  }
}

// sums [token][vector] of groups whose activations share a scale.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kBytes, class Weights>
BALLAST_INLINE void sum_sub_blocks(const Weights& weights, int64_t begin, int64_t end, Ahead& ahead,
                                   const ActivationBlock<kBytes>* const* blocks, Floats (*sums)[kVectors]) {
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) sums[token][vector] = zero_floats();
  }
  const auto block = block_at(weights, begin);
  for (int64_t index = begin; index < end; ++index) {
    if (--ahead.wait == 0) prefetch_share<kLayout, kVectors / kPanelVectors>(ahead);
    const auto group = group_at(weights, block, index);
    add_sub_block<kLayout, kVectors, kTokens, 0>(group, blocks, index, sums);
    if constexpr (kLayout.subs_per_group() == 2)
      add_sub_block<kLayout, kVectors, kTokens, 1>(group, blocks, index, sums);
  }
}

BALLAST_INLINE float* vector_products(const PanelProducts& out, int token, int vector) {
  return products_of(out, panel_index(vector)) + token * kPanelRows + part_index(vector) * kVectorRows;
}

// out [panel][token][16 rows] = what came before them, if anything, + the groups of `weights` times the
// tokens.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kBytes, class Weights>
BALLAST_INLINE void multiply_tokens(const Weights& weights, Groups groups, int64_t groups_per_scale,
                                    Ahead& shares, const void* const* tokens, const PanelProducts& out) {
  Ahead ahead = shares;
  const int64_t per_scale = kLayout.is_flat() ? groups_per_scale : kSuperGroups;
  const ActivationBlock<kBytes>* blocks[kTokens];
  Floats totals[kTokens][kVectors];
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
    blocks[token] = static_cast<const ActivationBlock<kBytes>*>(tokens[token]);
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      totals[token][vector] =
          groups.begin == 0 ? zero_floats() : load_floats(vector_products(out, token, vector));
    }
  }
  for (int64_t begin = groups.begin; begin < groups.end; begin += per_scale) {
    Floats sums[kTokens][kVectors];
    if constexpr (!kLayout.scales_codes())
      sum_sub_blocks<kLayout, kVectors, kTokens, kBytes>(weights, begin, begin + per_scale, ahead, blocks,
                                                         sums);
    else if constexpr (scales_dots<kBytes>(static_cast<const Weights*>(nullptr), kTokens))
      sum_block_of_dots<kLayout, kVectors, kTokens, kBytes>(weights, begin, ahead, blocks, sums);
    else
      sum_scaled_block<kLayout, kVectors, kTokens, kBytes>(weights, begin, ahead, blocks, sums);
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) {
      const Floats scale = broadcast_float(blocks[token][begin].scale);
#pragma GCC unroll 4
      for (int vector = 0; vector < kVectors; ++vector)
        totals[token][vector] = multiply_add(sums[token][vector], scale, totals[token][vector]);
    }
  }
#pragma GCC unroll 4
  for (int vector = 0; vector < kVectors; ++vector) {
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token)
      store_floats(vector_products(out, token, vector), totals[token][vector]);
  }
  shares = ahead;
}

// The next number of tokens that is a function of its own. Each one takes long to instrument, so under the
// sanitizer of addresses there are the widest and the narrowest alone.
constexpr int fewer_tokens(int num_tokens) {
#ifdef __SANITIZE_ADDRESS__
  return num_tokens > 1 ? 1 : 0;
#else
  return num_tokens - 1;
#endif
}

// As many at a time as registers hold, then the rest together.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kBytes, class Weights>
void multiply_rest(const Weights& weights, Groups groups, int64_t groups_per_scale, Ahead& ahead,
                   const void* const* tokens, int64_t num_tokens, PanelProducts out) {
  for (; num_tokens >= kTokens; num_tokens -= kTokens, tokens += kTokens, out.first += kTokens * kPanelRows)
    multiply_tokens<kLayout, kVectors, kTokens, kBytes>(weights, groups, groups_per_scale, ahead, tokens,
                                                        out);
  if constexpr (kTokens > 1) {
    if (num_tokens > 0)
      multiply_rest<kLayout, kVectors, fewer_tokens(kTokens), kBytes>(weights, groups, groups_per_scale,
                                                                      ahead, tokens, num_tokens, out);
  }
}

// Panels that are decoded as they are multiplied, with kTokens at a time.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kBytes>
BALLAST_NOINLINE void multiply_few(const PanelRun& run, int64_t index, const void* const* tokens,
                                   int64_t num_tokens, const PanelProducts& out) {
  const int64_t num_passes = divide_up(num_tokens, kTokens);
  PackedPanels<kLayout, kVectors> panels(run, index, num_passes);
  for (int64_t pass = 0; pass < num_passes; ++pass) {
    const int64_t begin = num_tokens * pass / num_passes;
    const int64_t end = num_tokens * (pass + 1) / num_passes;
    multiply_rest<kLayout, kVectors, kTokens, kBytes>(
        panels, {0, run.cols / kGroupCols}, run.blocks_per_scale, panels.ahead, tokens + begin, end - begin,
        {products_of(out, index) + begin * kPanelRows, out.panel_stride});
    panels.asking = asking_for_nothing();  // the first pass has asked
  }
}

// Where a super-block is summed up in whole numbers, registers hold more sums of one byte.
template <const QuantLayout& kLayout, int kBytes>
constexpr int tokens_at_once() {
  return kLayout.scales_codes() && kBytes == 1 ? kByteTokens : kQuantTokens;
}

// Panels that are decoded a piece at a time, once for all tokens.
template <const QuantLayout& kLayout, int kVectors, int kBytes>
BALLAST_NOINLINE void multiply_many(const PanelRun& run, int64_t index, const void* const* tokens,
                                    int64_t num_tokens, const PanelProducts& out) {
  const int64_t num_groups = run.cols / kGroupCols;
  constexpr int kTokens = tokens_at_once<kLayout, kBytes>();
  PackedPanels<kLayout, kVectors> panels(run, index, divide_up(num_tokens, kTokens));
  DecodedPiece<kLayout, kVectors> piece;
  for (int64_t first = 0; first < num_groups; first += kPieceGroups) {
    const Groups groups{first, smaller(first + kPieceGroups, num_groups)};
    decode_piece(panels, groups, piece);
    multiply_rest<kLayout, kVectors, kTokens, kBytes>(piece, groups, run.blocks_per_scale, panels.ahead,
                                                      tokens, num_tokens,
                                                      {products_of(out, index), out.panel_stride});
  }
}

// The same with panels that have to be decoded first, however few the tokens are.
template <const QuantLayout& kLayout, int kVectors, int kBytes>
BALLAST_NOINLINE void multiply_decoded(const PanelRun& run, int64_t index, const void* const* tokens,
                                       int64_t num_tokens, const PanelProducts& out) {
  const int64_t num_groups = run.cols / kGroupCols;
  const PackedPanels<kLayout, kVectors> panels(run, index, 1);
  DecodedPiece<decoded_layout<kLayout>(), kVectors> piece;
  for (int64_t first = 0; first < num_groups; first += kPieceGroups) {
    const Groups groups{first, smaller(first + kPieceGroups, num_groups)};
    decode_first(panels, groups, piece);
    Ahead nothing{};
    multiply_rest<decoded_layout<kLayout>(), kVectors, tokens_at_once<decoded_layout<kLayout>(), kBytes>(),
                  kBytes>(piece, groups, run.blocks_per_scale, nothing, tokens, num_tokens,
                          {products_of(out, index), out.panel_stride});
  }
}

// More are worth decoding panels once for all of them.
constexpr int64_t kPackedTokens = 12;

// The products of one panel with few tokens, for which points are looked up into registers.
template <const QuantLayout& kLayout, int kBytes>
void multiply_in_registers(const PanelRun& run, int64_t index, const void* const* tokens, int64_t num_tokens,
                           const PanelProducts& out);
#ifndef BALLAST_MULTIPLIES_POINTS
template <int kBytes>
constexpr int64_t kMostInRegisters = 0;
constexpr bool looks_up_into_registers() { return false; }
#endif
template <const QuantLayout& kLayout, int kBytes>
BALLAST_INLINE bool keeps_points_in_registers(int64_t num_tokens) {
  return kLayout.has_grid() && num_tokens <= kMostInRegisters<kBytes> && looks_up_into_registers();
}

// Panels from `index` on, kVectors of rows at a time; returns how far that goes.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kBytes>
int64_t multiply_from(int64_t index, const PanelRun& run, const void* const* tokens, int64_t num_tokens,
                      const PanelProducts& out) {
  constexpr int kPanels = kVectors / kPanelVectors;
  for (; index + kPanels <= run.count; index += kPanels) {
    if constexpr (kLayout.has_grid() && kPanels == 1 && kMostInRegisters<kBytes> > 0) {
      if (keeps_points_in_registers<kLayout, kBytes>(num_tokens)) {
        multiply_in_registers<kLayout, kBytes>(run, index, tokens, num_tokens, out);
        continue;
      }
    }
    if constexpr (kLayout.is_decoded_first()) {
      multiply_decoded<kLayout, kVectors, kBytes>(run, index, tokens, num_tokens, out);
    } else if (num_tokens <= kPackedTokens) {
      multiply_few<kLayout, kVectors, kTokens, kBytes>(run, index, tokens, num_tokens, out);
    } else {
      multiply_many<kLayout, kVectors, kBytes>(run, index, tokens, num_tokens, out);
    }
  }
  return index;
}

template <const QuantLayout& kLayout, int kBytes>
void multiply_quantized(const PanelRun& run, const void* const* tokens, int64_t num_tokens,
                        const PanelProducts& out) {
  // Fewer than kQuantTokens wait for memory whatever the chip, and that hands out one panel after the other
  // faster.
  const bool are_paired =
      num_tokens > kPackedTokens || (num_tokens >= kQuantTokens && !run.prefetching.in_one_stream &&
                                     !keeps_points_in_registers<kLayout, kBytes>(num_tokens));
  for (int64_t panel = 0; panel < run.count && panel < (are_paired ? kQuantVectors / kPanelVectors : 1);
       ++panel)
    prefetch_begin(run, panel);
  if (are_paired) {
    constexpr int kTokens = tokens_at_once<kLayout, kBytes>();
    const int64_t rest =
        multiply_from<kLayout, kQuantVectors, kTokens, kBytes>(0, run, tokens, num_tokens, out);
    multiply_from<kLayout, kPanelVectors, kTokens, kBytes>(rest, run, tokens, num_tokens, out);
  } else {
    multiply_from<kLayout, kPanelVectors, kSingleTokens, kBytes>(0, run, tokens, num_tokens, out);
  }
}

struct F32AsFloats {
  static constexpr int kBytes = 4;
  BALLAST_INLINE Floats load(const uint8_t* from) {
    return load_floats(reinterpret_cast<const float*>(from));
  }
};
struct F16AsFloats {
  static constexpr int kBytes = 2;
  BALLAST_INLINE Floats load(const uint8_t* from) { return halves_to_floats(from); }
};
struct BF16AsFloats {
  static constexpr int kBytes = 2;
  BALLAST_INLINE Floats load(const uint8_t* from) { return bfloats_to_floats(from); }
};

// Column c goes to partial sum c % 4: one sum alone would wait for itself.
template <class Format, int kTokens>
BALLAST_INLINE void multiply_float_tokens(const PanelRun& run, const uint8_t* panel,
                                          const void* const* tokens, float* out) {
  constexpr int kColumnBytes = kPanelRows * Format::kBytes;
  constexpr int kSums = 4;
  const int64_t cols = run.cols;
  const float* rows[kTokens];
  Floats sums[kTokens][kSums];
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
    rows[token] = static_cast<const float*>(tokens[token]);
#pragma GCC unroll 4
    for (int k = 0; k < kSums; ++k) sums[token][k] = zero_floats();
  }
  int64_t col = 0;
  for (; col + kSums <= cols; col += kSums) {
#pragma GCC unroll 4
    for (int k = 0; k < kSums; ++k) {
      const Floats weights = Format::load(panel + (col + k) * kColumnBytes);
      prefetch(panel + (col + k) * kColumnBytes + run.prefetching.bytes_ahead, 1, run.prefetching.to);
#pragma GCC unroll 16
      for (int token = 0; token < kTokens; ++token) {
        sums[token][k] = multiply_add(weights, broadcast_float(rows[token][col + k]), sums[token][k]);
      }
    }
  }
  for (; col < cols; ++col) {
    const Floats weights = Format::load(panel + col * kColumnBytes);
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) {
      sums[token][0] = multiply_add(weights, broadcast_float(rows[token][col]), sums[token][0]);
    }
  }
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
    store_floats(out + token * kPanelRows,
                 add(add(sums[token][0], sums[token][1]), add(sums[token][2], sums[token][3])));
  }
}

template <class Format, int kTokens>
void multiply_float_rest(const PanelRun& run, const uint8_t* panel, const void* const* tokens,
                         int64_t num_tokens, float* out) {
  for (; num_tokens >= kTokens; num_tokens -= kTokens, tokens += kTokens, out += kTokens * kPanelRows) {
    multiply_float_tokens<Format, kTokens>(run, panel, tokens, out);
  }
  if constexpr (kTokens > 1) {
    if (num_tokens > 0) multiply_float_rest<Format, kTokens / 2>(run, panel, tokens, num_tokens, out);
  }
}

template <class Format>
void multiply_floats(const PanelRun& run, const void* const* tokens, int64_t num_tokens,
                     const PanelProducts& out) {
  for (int64_t index = 0; index < run.count; ++index) {
    for (int part = 0; part < kPanelRows / kVectorRows; ++part) {
      multiply_float_rest<Format, kFloatTokens>(
          run, panel_of(run, index) + part * kVectorRows * Format::kBytes, tokens, num_tokens,
          products_of(out, index) + part * kVectorRows);
    }
  }
}

}  // namespace
}  // namespace ballast
