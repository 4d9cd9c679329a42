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
  constexpr bool kIsBiased = kLayout.is_wide() ? kWideIsBiased : kLayout.offset > 0;
  if constexpr (kIsBiased) return shift_left_ints<kLayout.offset_log2()>(broadcast_int(negative_sum));
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
template <const QuantLayout& kLayout, int kPanels>
struct PackedPanels {
  PackedPanels(const PanelRun& run, int64_t index, int vector_part, int64_t num_passes)
      : first(panel_of(run, index)),
        panel_bytes(run.panel_bytes),
        codes(first + kLayout.scale_bytes(run.cols) + vector_part * kPartBytes),
        part(vector_part) {
    const uint8_t* const next = index + kPanels < run.count ? panel_of(run, index + kPanels) : run.next;
    const bool asks_for_own = part == 0 && (num_passes == 1 || index == 0 || kLayout.is_decoded_first());
    asking = asks_for_own ? asking_ahead(run, first, next) : asking_for_nothing();
    // One pass has no time to spare for what comes next.
    if (part == 0 && num_passes > 1 && next != nullptr && !kLayout.is_decoded_first())
      ahead = {next, num_passes, num_passes, run.prefetching.to};
  }

  const uint8_t* const first;
  const int64_t panel_bytes;
  const uint8_t* const codes;
  const int part;
  Asking asking;
  Ahead ahead{};
};

template <int kPanels>
struct PackedBlock {
  int64_t begin;  // group
  CommonScales scales[kPanels];
};

template <const QuantLayout& kLayout, int kPanels>
struct PackedGroup {
  const uint8_t* codes;
  int64_t panel_bytes;
  GroupScales<kLayout> scales[kPanels];
  const uint8_t* asked;
  PrefetchTarget to;
};

// What group_at needs of the groups from `begin` on, at most to the end of a super-block.
template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE PackedBlock<kPanels> block_at(const PackedPanels<kLayout, kPanels>& panels, int64_t begin) {
  PackedBlock<kPanels> block;
  block.begin = begin;
#pragma GCC unroll 4
  for (int panel = 0; panel < kPanels; ++panel)
    block.scales[panel] =
        common_scales<kLayout>(panels.first + panel * panels.panel_bytes, panels.part, begin);
  return block;
}

template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE PackedGroup<kLayout, kPanels> group_at(const PackedPanels<kLayout, kPanels>& panels,
                                                      const PackedBlock<kPanels>& block, int64_t index) {
  PackedGroup<kLayout, kPanels> group;
  group.codes = panels.codes + index * kLayout.group_bytes();
  group.panel_bytes = panels.panel_bytes;
  group.asked = asked_at<kLayout>(panels.asking, index);
  group.to = panels.asking.to;
#pragma GCC unroll 4
  for (int panel = 0; panel < kPanels; ++panel)
    decode_scales<kLayout>(block.scales[panel], index - block.begin, group.scales[panel]);
  return group;
}

template <int kQuad, const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE void ask_ahead(const PackedGroup<kLayout, kPanels>& group) {
  prefetch_part<kLayout, kPanels, kQuad>(group.asked, group.panel_bytes, group.to);
}
template <int kQuad, const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE Bytes quad_of(const PackedGroup<kLayout, kPanels>& group, int panel) {
  return decode_quad<kLayout, kQuad>(group.codes + panel * group.panel_bytes);
}
template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE Floats scale_of(const PackedGroup<kLayout, kPanels>& group, int panel, int sub) {
  return group.scales[panel].scale[sub];
}
template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE Floats minimum_of(const PackedGroup<kLayout, kPanels>& group, int panel, int sub) {
  return group.scales[panel].minimum[sub];
}

// Of a super-block that is summed up in whole numbers: what its sums are multiples of, and each group's bytes
// of scales (pair_of_scales).
template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE Floats block_scale(const PackedPanels<kLayout, kPanels>&, const PackedBlock<kPanels>& block,
                                  int panel) {
  return block.scales[panel].scale;
}
template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE Floats block_minimum(const PackedPanels<kLayout, kPanels>&, const PackedBlock<kPanels>& block,
                                    int panel) {
  return block.scales[panel].minimum;
}
template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE Bytes pair_at(const PackedPanels<kLayout, kPanels>&, const PackedBlock<kPanels>& block,
                             int64_t index, int panel) {
  return pair_of_scales(block.scales[panel].first +
                        (index - block.begin) * kLayout.subs_per_group() * kPanelRows);
}

// A group whose codes are scaled as they are decoded.
template <const QuantLayout& kLayout, int kPanels>
struct ScaledGroup {
  PackedGroup<kLayout, kPanels> packed;
  CodeFactors<kLayout> factors[kPanels];
};

template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE ScaledGroup<kLayout, kPanels> with_factors(const PackedGroup<kLayout, kPanels>& packed) {
  ScaledGroup<kLayout, kPanels> group;
  group.packed = packed;
#pragma GCC unroll 4
  for (int panel = 0; panel < kPanels; ++panel)
    decode_factors<kLayout>(packed.scales[panel].bytes, group.factors[panel]);
  return group;
}
template <int kQuad, const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE void ask_ahead(const ScaledGroup<kLayout, kPanels>& group) {
  ask_ahead<kQuad>(group.packed);
}
template <int kQuad, const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE Bytes quad_of(const ScaledGroup<kLayout, kPanels>& group, int panel) {
  return scale_codes<kLayout, kQuad>(quad_of<kQuad>(group.packed, panel), group.factors[panel]);
}

// Groups in a piece: with tokens of as many columns it stays in the nearest cache. Whole super-blocks.
constexpr int kPieceGroups = 16;

// A piece of some panels' columns, decoded once for many tokens.
template <const QuantLayout& kLayout, int kPanels>
struct DecodedPiece {
  static constexpr int kSubs = kLayout.scales_codes() ? 1 : kLayout.subs_per_group();
  static constexpr int kScales = kLayout.scales_codes() ? kPieceGroups / kSuperGroups : kPieceGroups;

  int64_t first;  // group
  alignas(64) uint8_t codes[kPieceGroups][kGroupQuads][kPanels][kPartBytes];
  alignas(64) float scale[kScales][kSubs][kPanels][kVectorRows];
  alignas(64) float minimum[kLayout.has_minimum ? kScales : 1][kSubs][kPanels][kVectorRows];
  alignas(64) uint8_t pairs[kLayout.scales_codes() ? kPieceGroups : 1][kPanels][kPartBytes];
};

template <const QuantLayout& kLayout, int kPanels>
struct DecodedGroup {
  const DecodedPiece<kLayout, kPanels>& piece;
  int64_t index;
};

struct DecodedBlock {
  int64_t index;
};

template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE DecodedBlock block_at(const DecodedPiece<kLayout, kPanels>& piece, int64_t begin) {
  return {(begin - piece.first) >> kSuperGroupsLog2};
}
template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE Floats block_scale(const DecodedPiece<kLayout, kPanels>& piece, const DecodedBlock& block,
                                  int panel) {
  return load_floats(piece.scale[block.index][0][panel]);
}
template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE Floats block_minimum(const DecodedPiece<kLayout, kPanels>& piece, const DecodedBlock& block,
                                    int panel) {
  return load_floats(piece.minimum[block.index][0][panel]);
}
template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE Bytes pair_at(const DecodedPiece<kLayout, kPanels>& piece, const DecodedBlock&, int64_t index,
                             int panel) {
  return load_bytes(piece.pairs[index - piece.first][panel]);
}
template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE DecodedGroup<kLayout, kPanels> group_at(const DecodedPiece<kLayout, kPanels>& piece,
                                                       const DecodedBlock&, int64_t index) {
  return {piece, index - piece.first};
}
template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE DecodedGroup<kLayout, kPanels> with_factors(const DecodedGroup<kLayout, kPanels>& group) {
  return group;
}
template <int kQuad, const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE void ask_ahead(const DecodedGroup<kLayout, kPanels>&) {}
template <int kQuad, const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE Bytes quad_of(const DecodedGroup<kLayout, kPanels>& group, int panel) {
  return load_bytes(group.piece.codes[group.index][kQuad][panel]);
}
template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE Floats scale_of(const DecodedGroup<kLayout, kPanels>& group, int panel, int sub) {
  return load_floats(group.piece.scale[group.index][sub][panel]);
}
template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE Floats minimum_of(const DecodedGroup<kLayout, kPanels>& group, int panel, int sub) {
  return load_floats(group.piece.minimum[kLayout.has_minimum ? group.index : 0][sub][panel]);
}

template <int kPanels, int kQuad = 0, class Group>
BALLAST_INLINE void decode_quads(const Group& group, uint8_t (*out)[kPanels][kPartBytes]) {
  if constexpr (kQuad < kGroupQuads) {
    if constexpr (kQuad % 2 == 0) ask_ahead<kQuad>(group);
#pragma GCC unroll 4
    for (int panel = 0; panel < kPanels; ++panel)
      store_codes(out[kQuad][panel], quad_of<kQuad>(group, panel));
    decode_quads<kPanels, kQuad + 1>(group, out);
  }
}

template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE void store_scales(const PackedGroup<kLayout, kPanels>& group, int64_t index,
                                 DecodedPiece<kLayout, kPanels>& out) {
#pragma GCC unroll 4
  for (int panel = 0; panel < kPanels; ++panel) {
    for (int sub = 0; sub < kLayout.subs_per_group(); ++sub) {
      store_floats(out.scale[index][sub][panel], scale_of(group, panel, sub));
      if constexpr (kLayout.has_minimum)
        store_floats(out.minimum[index][sub][panel], minimum_of(group, panel, sub));
    }
  }
}

template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE void store_block_scales(const PackedPanels<kLayout, kPanels>& panels,
                                       const PackedBlock<kPanels>& block, int64_t index,
                                       DecodedPiece<kLayout, kPanels>& out) {
  const int64_t of_block = (index - out.first) >> kSuperGroupsLog2;
#pragma GCC unroll 4
  for (int panel = 0; panel < kPanels; ++panel) {
    store_floats(out.scale[of_block][0][panel], block_scale(panels, block, panel));
    if constexpr (kLayout.has_minimum)
      store_floats(out.minimum[of_block][0][panel], block_minimum(panels, block, panel));
    store_codes(out.pairs[index - out.first][panel], pair_at(panels, block, index, panel));
  }
}

template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE void decode_piece(const PackedPanels<kLayout, kPanels>& panels, Groups groups,
                                 DecodedPiece<kLayout, kPanels>& out) {
  out.first = groups.begin;
  for (int64_t index = 0; index < groups.end - groups.begin; ++index) {
    const int64_t begin = groups.begin + index / kSuperGroups * kSuperGroups;
    const auto block = block_at(panels, begin);
    const auto group = group_at(panels, block, groups.begin + index);
    if constexpr (kLayout.scales_codes()) {
      if constexpr (multiplies_scaled_codes<kLayout>())
        decode_quads<kPanels>(with_factors(group), out.codes[index]);
      else
        decode_quads<kPanels>(group, out.codes[index]);
      store_block_scales(panels, block, groups.begin + index, out);
    } else {
      decode_quads<kPanels>(group, out.codes[index]);
      store_scales(group, index, out);
    }
  }
}

// What panels that are decoded first are multiplied as: kernels that many formats share.
static constexpr QuantLayout kDecodedSubs32{8, 32, 128, Scales::kNested, false, CodeTable::kNone};
static constexpr QuantLayout kDecodedTrits{2, 32, 1, Scales::kNested, false, CodeTable::kNone};
static constexpr QuantLayout kDecodedSubs16{8, 16, 128, Scales::kNested, false, CodeTable::kNone};

template <const QuantLayout& kLayout>
constexpr const QuantLayout& decoded_layout() {
  return kLayout.has_trits()             ? kDecodedTrits
         : kLayout.subs_per_group() == 1 ? kDecodedSubs32
                                         : kDecodedSubs16;
}

template <const QuantLayout& kLayout>
BALLAST_INLINE Floats decoded_scale(const uint8_t* record, const uint8_t* group, int part, int64_t index,
                                    int sub) {
  if constexpr (kLayout.has_trits())
    return halves_to_floats(record + part * kVectorRows * 2);
  else
    return point_scale<kLayout>(record, group, part, index, sub);
}

template <const QuantLayout& kLayout, int kPanels>
BALLAST_INLINE void decode_first(const PackedPanels<kLayout, kPanels>& panels, int64_t cols, Groups groups,
                                 DecodedPiece<decoded_layout<kLayout>(), kPanels>& out) {
  constexpr int kStride = kPanels * kPartBytes;
  out.first = groups.begin;
  for (int panel = 0; panel < kPanels; ++panel) {
    const uint8_t* const first = panels.first + panel * panels.panel_bytes;
    const uint8_t* group = first + kLayout.scale_bytes(cols) + groups.begin * kLayout.group_bytes();
    if constexpr (kLayout.has_trits()) {
      for (int64_t at = 0; at < groups.end - groups.begin; at += kSuperGroups)
        decode_trits<kStride>(group + at * kLayout.group_bytes(), panels.part, out.codes[at][0][panel]);
    } else {
      decode_groups<kLayout, kStride>(group, groups.end - groups.begin, panels.part, out.codes[0][0][panel]);
    }
    for (int64_t at = groups.begin; at < groups.end; ++at, group += kLayout.group_bytes()) {
      const uint8_t* const record = first + (at >> kSuperGroupsLog2) * kLayout.scale_stride();
      prefetch(asked_at<kLayout>(panels.asking, at) + panel * panels.panel_bytes, share_bytes<kLayout>(),
               panels.asking.to);
      for (int sub = 0; sub < kLayout.subs_per_group(); ++sub)
        store_floats(out.scale[at - groups.begin][sub][panel],
                     decoded_scale<kLayout>(record, group, panels.part, at % kSuperGroups, sub));
    }
  }
}

// Sums that a dot product is formed in: with few tokens one alone would have to wait for itself.
template <const QuantLayout& kLayout, int kPanels, int kTokens>
constexpr int num_chains() {
  return kPanels * kTokens <= 2 && kLayout.subs_per_group() == 1 ? 2 : 1;
}

// Quads kQuad…kEnd of a group of some panels: each decoded once for all tokens, each activation loaded once
// for all panels. dots [token][chain][plane][panel], a plane being one byte of the activations.
template <const QuantLayout& kLayout, int kPanels, int kTokens, int kBytes, int kQuad, int kEnd, class Group>
BALLAST_INLINE void add_quads(const Group& group, const ActivationBlock<kBytes>* const* blocks, int64_t index,
                              Ints (*dots)[num_chains<kLayout, kPanels, kTokens>()][kBytes][kPanels]) {
  if constexpr (kQuad < kEnd) {
    constexpr int kChain = kQuad / 2 % num_chains<kLayout, kPanels, kTokens>();
    ask_ahead<kQuad>(group);
    Bytes first[kPanels];
    Bytes second[kPanels];
#pragma GCC unroll 4
    for (int panel = 0; panel < kPanels; ++panel) {
      first[panel] = quad_of<kQuad>(group, panel);
      second[panel] = quad_of<kQuad + 1>(group, panel);
    }
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 2
      for (int plane = 0; plane < kBytes; ++plane) {
        add_two_quads<kLayout.is_wide(), kPanels>(
            dots[token][kChain][plane], first, second,
            blocks[token][index].quants + plane * kGroupCols + 4 * kQuad);
      }
    }
    add_quads<kLayout, kPanels, kTokens, kBytes, kQuad + 2, kEnd>(group, blocks, index, dots);
  }
}

// dots [chain][plane][panel] of one token, to be added to.
template <int kPanels, int kChains, int kBytes>
BALLAST_INLINE void begin_dots(Ints first, Ints (&dots)[kChains][kBytes][kPanels]) {
#pragma GCC unroll 4
  for (int panel = 0; panel < kPanels; ++panel) {
#pragma GCC unroll 2
    for (auto& chain : dots) {
      chain[0][panel] = zero_ints();
      chain[kBytes - 1][panel] = zero_ints();
    }
    dots[0][kBytes - 1][panel] = first;
  }
}

// What they come to.
template <int kPanels, int kChains, int kBytes>
BALLAST_INLINE Ints end_dots(const Ints (&dots)[kChains][kBytes][kPanels], int panel) {
  const auto sum_of_chains = [&](int plane) {
    const Ints one = dots[0][plane][panel];
    return kChains == 1 ? one : add_ints(one, dots[kChains - 1][plane][panel]);
  };
  const Ints dot = sum_of_chains(kBytes - 1);
  if constexpr (kBytes == 2) return add_ints(dot, times_digit_base(sum_of_chains(0)));
  return dot;
}

// sums [token][panel] += a sub-block.
template <const QuantLayout& kLayout, int kPanels, int kTokens, int kSub, int kBytes, class Group>
BALLAST_INLINE void add_sub_block(const Group& group, const ActivationBlock<kBytes>* const* blocks,
                                  int64_t index, Floats (*sums)[kPanels]) {
  constexpr bool kWhole = kLayout.subs_per_group() == 1;
  constexpr int kQuads = kGroupQuads / kLayout.subs_per_group();
  constexpr int kFirst = kSub * kQuads;
  constexpr int kChains = num_chains<kLayout, kPanels, kTokens>();
  Ints dots[kTokens][kChains][kBytes][kPanels];
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
    const ActivationBlock<kBytes>& block = blocks[token][index];
    begin_dots(first_sum<kLayout>(kWhole ? block.negative_sum : block.negative_half_sums[kSub]), dots[token]);
  }
  add_quads<kLayout, kPanels, kTokens, kBytes, kFirst, kFirst + kQuads>(group, blocks, index, dots);
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
    const ActivationBlock<kBytes>& block = blocks[token][index];
    const float sum_of_numbers = kWhole ? block.sum : block.half_sums[kSub];
#pragma GCC unroll 4
    for (int panel = 0; panel < kPanels; ++panel) {
      Floats& sum = sums[token][panel];
      sum = multiply_add(to_floats(end_dots(dots[token], panel)), scale_of(group, panel, kSub), sum);
      if constexpr (kLayout.has_minimum)
        sum = add_minimum<kLayout>(minimum_of(group, panel, kSub), sum_of_numbers, sum);
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
template <int kBytes, const QuantLayout& kLayout, int kPanels>
constexpr bool scales_dots(const PackedPanels<kLayout, kPanels>*, int num_tokens) {
  return !multiplies_scaled_codes<kLayout>() || kPanels * num_tokens * kBytes <= 4;
}
template <int kBytes, const QuantLayout& kLayout, int kPanels>
constexpr bool scales_dots(const DecodedPiece<kLayout, kPanels>*, int) {
  return !multiplies_scaled_codes<kLayout>();
}

// totals [token][1][plane][panel] += a sub-block.
template <const QuantLayout& kLayout, int kPanels, int kTokens, int kBytes, int kSub, class Group>
BALLAST_INLINE void add_scaled_dots(const Group& group, const ActivationBlock<kBytes>* const* blocks,
                                    int64_t index, const Bytes* pairs, Ints (*totals)[1][kBytes][kPanels]) {
  constexpr int kQuads = kGroupQuads / kLayout.subs_per_group();
  constexpr int kFirst = kSub * kQuads;
  Ints dots[kTokens][num_chains<kLayout, kPanels, kTokens>()][kBytes][kPanels];
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) begin_dots(zero_ints(), dots[token]);
  add_quads<kLayout, kPanels, kTokens, kBytes, kFirst, kFirst + kQuads>(group, blocks, index, dots);
#pragma GCC unroll 4
  for (int panel = 0; panel < kPanels; ++panel) {
    const Ints scale = word_of_pair<kSub>(scales_of_pair<kLayout>(pairs[panel]));
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 2
      for (int plane = 0; plane < kBytes; ++plane) {
        Ints& total = totals[token][0][plane][panel];
        total = add_word_products(total, dots[token][0][plane][panel], scale);
      }
    }
  }
}

// The same sums as sum_scaled_block's.
template <const QuantLayout& kLayout, int kPanels, int kTokens, int kBytes, class Weights>
BALLAST_INLINE void sum_block_of_dots(const Weights& weights, int64_t begin, Ahead& ahead,
                                      const ActivationBlock<kBytes>* const* blocks, Floats (*sums)[kPanels]) {
  Ints totals[kTokens][1][kBytes][kPanels];
  Ints minima[kTokens][1][kBytes][kPanels];
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
    begin_dots(zero_ints(), totals[token]);
    begin_dots(zero_ints(), minima[token]);
  }
  const auto block = block_at(weights, begin);
  for (int64_t index = begin; index < begin + kSuperGroups; ++index) {
    if (--ahead.wait == 0) prefetch_share<kLayout, kPanels>(ahead);
    const auto group = group_at(weights, block, index);
    Bytes pairs[kPanels];
#pragma GCC unroll 4
    for (int panel = 0; panel < kPanels; ++panel) pairs[panel] = pair_at(weights, block, index, panel);
    add_scaled_dots<kLayout, kPanels, kTokens, kBytes, 0>(group, blocks, index, pairs, totals);
    add_scaled_dots<kLayout, kPanels, kTokens, kBytes, 1>(group, blocks, index, pairs, totals);
#pragma GCC unroll 4
    for (int panel = 0; panel < kPanels; ++panel) {
      const Bytes words = offsets_of_pair<kLayout>(pairs[panel]);
#pragma GCC unroll 16
      for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 2
        for (int plane = 0; plane < kBytes; ++plane) {
          Ints& sum = kLayout.has_minimum ? minima[token][0][plane][panel] : totals[token][0][plane][panel];
          sum = add_word_products(sum, words, half_digits(blocks[token][index], plane));
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 4
    for (int panel = 0; panel < kPanels; ++panel) {
      Floats sum = multiply(to_floats(end_dots(totals[token], panel)), block_scale(weights, block, panel));
      if constexpr (kLayout.has_minimum)
        sum = multiply_add(to_floats(end_dots(minima[token], panel)), block_minimum(weights, block, panel),
                           sum);
      sums[token][panel] = sum;
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

// sums [token][panel] of a super-block whose codes are scaled. They are whole numbers below 2^31: 256
// products of 128 and a number of two bytes.
template <const QuantLayout& kLayout, int kPanels, int kTokens, int kBytes, class Weights>
BALLAST_INLINE void sum_scaled_block(const Weights& weights, int64_t begin, Ahead& ahead,
                                     const ActivationBlock<kBytes>* const* blocks, Floats (*sums)[kPanels]) {
  Ints dots[kTokens][num_chains<kLayout, kPanels, kTokens>()][kBytes][kPanels];
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token)
    begin_dots(first_sum_of_block<kLayout>(blocks[token] + begin), dots[token]);
  const auto block = block_at(weights, begin);
  for (int64_t index = begin; index < begin + kSuperGroups; ++index) {
    if (--ahead.wait == 0) prefetch_share<kLayout, kPanels>(ahead);
    const auto group = with_factors(group_at(weights, block, index));
    add_quads<kLayout, kPanels, kTokens, kBytes, 0, kGroupQuads>(group, blocks, index, dots);
  }
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 4
    for (int panel = 0; panel < kPanels; ++panel) {
      const Ints dot = end_dots(dots[token], panel);
      sums[token][panel] =
          multiply(to_floats(kLayout.negates_codes() ? subtract_ints(zero_ints(), dot) : dot),
                   block_scale(weights, block, panel));
    }
  }
  if constexpr (kLayout.has_minimum) {
    // Apart from the products, for the registers' sake.
    Ints minima[kTokens][1][kBytes][kPanels];
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) begin_dots(zero_ints(), minima[token]);
    for (int64_t index = begin; index < begin + kSuperGroups; ++index) {
#pragma GCC unroll 4
      for (int panel = 0; panel < kPanels; ++panel) {
        const Bytes words = minima_of_pair(pair_at(weights, block, index, panel));
#pragma GCC unroll 16
        for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 2
          for (int plane = 0; plane < kBytes; ++plane) {
            Ints& sum = minima[token][0][plane][panel];
            sum = add_word_products(sum, words, half_digits(blocks[token][index], plane));
          }
        }
      }
    }
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 4
      for (int panel = 0; panel < kPanels; ++panel)
        sums[token][panel] = multiply_add(to_floats(end_dots(minima[token], panel)),
                                          block_minimum(weights, block, panel), sums[token][panel]);
    }
  }
}

// sums [token][panel] of groups whose activations share a scale.
template <const QuantLayout& kLayout, int kPanels, int kTokens, int kBytes, class Weights>
BALLAST_INLINE void sum_sub_blocks(const Weights& weights, int64_t begin, int64_t end, Ahead& ahead,
                                   const ActivationBlock<kBytes>* const* blocks, Floats (*sums)[kPanels]) {
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 4
    for (int panel = 0; panel < kPanels; ++panel) sums[token][panel] = zero_floats();
  }
  const auto block = block_at(weights, begin);
  for (int64_t index = begin; index < end; ++index) {
    if (--ahead.wait == 0) prefetch_share<kLayout, kPanels>(ahead);
    const auto group = group_at(weights, block, index);
    add_sub_block<kLayout, kPanels, kTokens, 0>(group, blocks, index, sums);
    if constexpr (kLayout.subs_per_group() == 2)
      add_sub_block<kLayout, kPanels, kTokens, 1>(group, blocks, index, sums);
  }
}

// out [panel][token][16] = what came before them, if anything, + the groups of `weights` times the tokens.
template <const QuantLayout& kLayout, int kPanels, int kTokens, int kBytes, class Weights>
BALLAST_INLINE void multiply_tokens(const Weights& weights, Groups groups, int64_t groups_per_scale,
                                    Ahead& shares, const void* const* tokens, const PanelProducts& out) {
  Ahead ahead = shares;
  const int64_t per_scale = kLayout.is_flat() ? groups_per_scale : kSuperGroups;
  const ActivationBlock<kBytes>* blocks[kTokens];
  Floats totals[kTokens][kPanels];
#pragma GCC unroll 16
  for (int token = 0; token < kTokens; ++token) {
    blocks[token] = static_cast<const ActivationBlock<kBytes>*>(tokens[token]);
#pragma GCC unroll 4
    for (int panel = 0; panel < kPanels; ++panel) {
      totals[token][panel] =
          groups.begin == 0 ? zero_floats() : load_floats(products_of(out, panel) + token * kPanelRows);
    }
  }
  for (int64_t begin = groups.begin; begin < groups.end; begin += per_scale) {
    Floats sums[kTokens][kPanels];
    if constexpr (kLayout.scales_codes() &&
                  scales_dots<kBytes>(static_cast<const Weights*>(nullptr), kTokens))
      sum_block_of_dots<kLayout, kPanels, kTokens, kBytes>(weights, begin, ahead, blocks, sums);
    else if constexpr (kLayout.scales_codes())
      sum_scaled_block<kLayout, kPanels, kTokens, kBytes>(weights, begin, ahead, blocks, sums);
    else
      sum_sub_blocks<kLayout, kPanels, kTokens, kBytes>(weights, begin, begin + per_scale, ahead, blocks,
                                                        sums);
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) {
      const Floats scale = broadcast_float(blocks[token][begin].scale);
#pragma GCC unroll 4
      for (int panel = 0; panel < kPanels; ++panel)
        totals[token][panel] = multiply_add(sums[token][panel], scale, totals[token][panel]);
    }
  }
#pragma GCC unroll 4
  for (int panel = 0; panel < kPanels; ++panel) {
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token)
      store_floats(products_of(out, panel) + token * kPanelRows, totals[token][panel]);
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
template <const QuantLayout& kLayout, int kPanels, int kTokens, int kBytes, class Weights>
void multiply_rest(const Weights& weights, Groups groups, int64_t groups_per_scale, Ahead& ahead,
                   const void* const* tokens, int64_t num_tokens, PanelProducts out) {
  for (; num_tokens >= kTokens; num_tokens -= kTokens, tokens += kTokens, out.first += kTokens * kPanelRows)
    multiply_tokens<kLayout, kPanels, kTokens, kBytes>(weights, groups, groups_per_scale, ahead, tokens, out);
  if constexpr (kTokens > 1) {
    if (num_tokens > 0)
      multiply_rest<kLayout, kPanels, fewer_tokens(kTokens), kBytes>(weights, groups, groups_per_scale, ahead,
                                                                     tokens, num_tokens, out);
  }
}

// Panels that are decoded as they are multiplied, with kTokens at a time.
template <const QuantLayout& kLayout, int kPanels, int kTokens, int kBytes>
BALLAST_NOINLINE void multiply_few(const PanelRun& run, int64_t index, const void* const* tokens,
                                   int64_t num_tokens, const PanelProducts& out) {
  const int64_t num_passes = divide_up(num_tokens, kTokens);
  for (int part = 0; part < kPanelRows / kVectorRows; ++part) {
    PackedPanels<kLayout, kPanels> panels(run, index, part, num_passes);
    for (int64_t pass = 0; pass < num_passes; ++pass) {
      const int64_t begin = num_tokens * pass / num_passes;
      const int64_t end = num_tokens * (pass + 1) / num_passes;
      multiply_rest<kLayout, kPanels, kTokens, kBytes>(
          panels, {0, run.cols / kGroupCols}, run.blocks_per_scale, panels.ahead, tokens + begin, end - begin,
          {products_of(out, index) + part * kVectorRows + begin * kPanelRows, out.panel_stride});
      panels.asking = asking_for_nothing();  // the first pass has asked
    }
  }
}

// Where a super-block is summed up in whole numbers, registers hold more sums of one byte.
template <const QuantLayout& kLayout, int kBytes>
constexpr int tokens_at_once() {
  return kLayout.scales_codes() && kBytes == 1 ? kByteTokens : kQuantTokens;
}

// Panels that are decoded a piece at a time, once for all tokens.
template <const QuantLayout& kLayout, int kPanels, int kBytes>
BALLAST_NOINLINE void multiply_many(const PanelRun& run, int64_t index, const void* const* tokens,
                                    int64_t num_tokens, const PanelProducts& out) {
  const int64_t num_groups = run.cols / kGroupCols;
  for (int part = 0; part < kPanelRows / kVectorRows; ++part) {
    PackedPanels<kLayout, kPanels> panels(run, index, part,
                                          divide_up(num_tokens, tokens_at_once<kLayout, kBytes>()));
    DecodedPiece<kLayout, kPanels> piece;
    for (int64_t first = 0; first < num_groups; first += kPieceGroups) {
      const Groups groups{first, smaller(first + kPieceGroups, num_groups)};
      decode_piece(panels, groups, piece);
      multiply_rest<kLayout, kPanels, tokens_at_once<kLayout, kBytes>(), kBytes>(
          piece, groups, run.blocks_per_scale, panels.ahead, tokens, num_tokens,
          {products_of(out, index) + part * kVectorRows, out.panel_stride});
    }
  }
}

// The same with panels that have to be decoded first, however few the tokens are.
template <const QuantLayout& kLayout, int kPanels, int kBytes>
BALLAST_NOINLINE void multiply_decoded(const PanelRun& run, int64_t index, const void* const* tokens,
                                       int64_t num_tokens, const PanelProducts& out) {
  const int64_t num_groups = run.cols / kGroupCols;
  for (int part = 0; part < kPanelRows / kVectorRows; ++part) {
    const PackedPanels<kLayout, kPanels> panels(run, index, part, 1);
    DecodedPiece<decoded_layout<kLayout>(), kPanels> piece;
    for (int64_t first = 0; first < num_groups; first += kPieceGroups) {
      const Groups groups{first, smaller(first + kPieceGroups, num_groups)};
      decode_first(panels, run.cols, groups, piece);
      Ahead nothing{};
      multiply_rest<decoded_layout<kLayout>(), kPanels, kQuantTokens, kBytes>(
          piece, groups, run.blocks_per_scale, nothing, tokens, num_tokens,
          {products_of(out, index) + part * kVectorRows, out.panel_stride});
    }
  }
}

// More are worth decoding panels once for all of them.
constexpr int64_t kPackedTokens = 12;

// Whether points are looked up into registers for so many tokens, one panel at a time, and the products of
// such a panel.
#ifdef BALLAST_PERMUTES_POINTS
template <const QuantLayout& kLayout, int kBytes>
void multiply_in_registers(const PanelRun& run, int64_t index, const void* const* tokens, int64_t num_tokens,
                           const PanelProducts& out);
#else
constexpr bool keeps_points_in_registers(int64_t) { return false; }
template <const QuantLayout& kLayout, int kBytes>
BALLAST_INLINE void multiply_in_registers(const PanelRun&, int64_t, const void* const*, int64_t,
                                          const PanelProducts&) {}
#endif

// Panels from `index` on, kPanels at a time; returns how far that goes.
template <const QuantLayout& kLayout, int kPanels, int kTokens, int kBytes>
int64_t multiply_from(int64_t index, const PanelRun& run, const void* const* tokens, int64_t num_tokens,
                      const PanelProducts& out) {
  for (; index + kPanels <= run.count; index += kPanels) {
    if constexpr (kLayout.has_grid() && kPanels == 1) {
      if (keeps_points_in_registers(num_tokens)) {
        multiply_in_registers<kLayout, kBytes>(run, index, tokens, num_tokens, out);
        continue;
      }
    }
    if constexpr (kLayout.is_decoded_first()) {
      multiply_decoded<kLayout, kPanels, kBytes>(run, index, tokens, num_tokens, out);
    } else if (num_tokens <= kPackedTokens) {
      multiply_few<kLayout, kPanels, kTokens, kBytes>(run, index, tokens, num_tokens, out);
    } else {
      multiply_many<kLayout, kPanels, kBytes>(run, index, tokens, num_tokens, out);
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
                                     !(kLayout.has_grid() && keeps_points_in_registers(num_tokens)));
  for (int64_t panel = 0; panel < run.count && panel < (are_paired ? kQuantPanels : 1); ++panel)
    prefetch_begin(run, panel);
  if (are_paired) {
    constexpr int kTokens = tokens_at_once<kLayout, kBytes>();
    const int64_t rest =
        multiply_from<kLayout, kQuantPanels, kTokens, kBytes>(0, run, tokens, num_tokens, out);
    multiply_from<kLayout, 1, kTokens, kBytes>(rest, run, tokens, num_tokens, out);
  } else {
    multiply_from<kLayout, 1, kSingleTokens, kBytes>(0, run, tokens, num_tokens, out);
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
