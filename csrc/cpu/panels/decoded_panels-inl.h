// Decoded panels as a source of weights: some groups are decoded to memory once, for many tokens.
#pragma once

#include "cpu/panels/decode_points-inl.h"
#include "cpu/panels/decode_trits-inl.h"
#include "cpu/panels/packed_panels-inl.h"

namespace ballast {
namespace {

// The layouts of decoded panels. Many formats share their kernels.
static constexpr QuantLayout kDecodedSubs32{8, 32, 128, Scales::kNested, false, CodeTable::kNone};
static constexpr QuantLayout kDecodedTrits{2, 32, 1, Scales::kNested, false, CodeTable::kNone};
static constexpr QuantLayout kDecodedSubs16{8, 16, 128, Scales::kNested, false, CodeTable::kNone};

template <const QuantLayout& kLayout>
constexpr const QuantLayout& decoded_layout() {
  return kLayout.has_trits()             ? kDecodedTrits
         : kLayout.subs_per_group() == 1 ? kDecodedSubs32
                                         : kDecodedSubs16;
}

// Groups that are decoded together, in whole super-blocks. With the same columns of tokens they fit in the
// first-level cache.
constexpr int kDecodedGroups = 16;

// Some groups of one or more panels, decoded once for many tokens.
template <const QuantLayout& kLayout, int kVectors>
struct DecodedPanels {
  static constexpr int kSubs = kLayout.scales_codes() ? 1 : kLayout.subs_per_group();
  static constexpr int kScales = kLayout.scales_codes() ? kDecodedGroups / kSuperGroups : kDecodedGroups;

  int64_t first;  // group
  alignas(64) uint8_t codes[kDecodedGroups][kGroupQuads][kVectors][kVectorBytes];
  alignas(64) float scale[kScales][kSubs][kVectors][kVectorRows];
  alignas(64) float minimum[kLayout.has_minimum ? kScales : 1][kSubs][kVectors][kVectorRows];
  alignas(64) uint8_t pairs[kLayout.scales_codes() ? kDecodedGroups : 1][kVectors][kVectorBytes];
};

template <const QuantLayout& kLayout, int kVectors>
struct DecodedGroup {
  static constexpr int kLargestCode =
      kLayout.scales_codes() && multiplies_scaled_codes<kLayout>() ? largest_scaled_code(kLayout)
      : &kLayout == &kDecodedSubs32 || &kLayout == &kDecodedSubs16 ? kLargestPoint
                                                                   : largest_code(kLayout);

  const DecodedPanels<kLayout, kVectors>& decoded;
  int64_t index;
};

struct DecodedBlock {
  int64_t index;
};

template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE DecodedBlock block_at(const DecodedPanels<kLayout, kVectors>& decoded, int64_t begin) {
  return {(begin - decoded.first) >> kSuperGroupsLog2};
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Floats block_scale(const DecodedPanels<kLayout, kVectors>& decoded, const DecodedBlock& block,
                                  int vector) {
  return load_floats(decoded.scale[block.index][0][vector]);
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Floats block_minimum(const DecodedPanels<kLayout, kVectors>& decoded,
                                    const DecodedBlock& block, int vector) {
  return load_floats(decoded.minimum[block.index][0][vector]);
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Bytes pair_at(const DecodedPanels<kLayout, kVectors>& decoded, const DecodedBlock&,
                             int64_t index, int vector) {
  return load_bytes(decoded.pairs[index - decoded.first][vector]);
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE DecodedGroup<kLayout, kVectors> group_at(const DecodedPanels<kLayout, kVectors>& decoded,
                                                        const DecodedBlock&, int64_t index) {
  return {decoded, index - decoded.first};
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE DecodedGroup<kLayout, kVectors> with_factors(const DecodedGroup<kLayout, kVectors>& group) {
  return group;
}
template <int kQuad, const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE void prefetch_quads(const DecodedGroup<kLayout, kVectors>&) {}
template <int kQuad, const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Bytes quad_of(const DecodedGroup<kLayout, kVectors>& group, int vector) {
  return load_bytes(group.decoded.codes[group.index][kQuad][vector]);
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Floats scale_of(const DecodedGroup<kLayout, kVectors>& group, int vector, int sub) {
  return load_floats(group.decoded.scale[group.index][sub][vector]);
}
template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE Floats minimum_of(const DecodedGroup<kLayout, kVectors>& group, int vector, int sub) {
  return load_floats(group.decoded.minimum[kLayout.has_minimum ? group.index : 0][sub][vector]);
}

template <int kVectors, int kQuad = 0, class Group>
BALLAST_INLINE void decode_quads(const Group& group, uint8_t (*out)[kVectors][kVectorBytes]) {
  if constexpr (kQuad < kGroupQuads) {
    if constexpr (kQuad % 2 == 0) prefetch_quads<kQuad>(group);
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector)
      store_codes(out[kQuad][vector], quad_of<kQuad>(group, vector));
    decode_quads<kVectors, kQuad + 1>(group, out);
  }
}

template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE void store_scales(const PackedGroup<kLayout, kVectors>& group, int64_t index,
                                 DecodedPanels<kLayout, kVectors>& out) {
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
                                       DecodedPanels<kLayout, kVectors>& out) {
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
BALLAST_INLINE void decode_panels(const PackedPanels<kLayout, kVectors>& panels, Groups groups,
                                  DecodedPanels<kLayout, kVectors>& out) {
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
BALLAST_INLINE Floats decoded_scale(const uint8_t* record, const uint8_t* group, int row_vector,
                                    int64_t index, int sub) {
  if constexpr (kLayout.has_trits())
    return halves_to_floats(record + row_vector * kVectorRows * 2);
  else
    return point_scale<kLayout>(record, group, row_vector, index, sub);
}

template <const QuantLayout& kLayout, int kVectors>
BALLAST_INLINE void decode_first(const PackedPanels<kLayout, kVectors>& panels, Groups groups,
                                 DecodedPanels<decoded_layout<kLayout>(), kVectors>& out) {
  constexpr int kStride = kVectors * kVectorBytes;
  out.first = groups.begin;
  for (int vector = 0; vector < kVectors; ++vector) {
    const int row_vector = row_vector_of(vector);
    const int64_t from = panel_index(vector) * panels.panel_bytes;
    const uint8_t* group = panels.codes + from + groups.begin * kLayout.group_bytes();
    if constexpr (kLayout.has_trits()) {
      for (int64_t at = 0; at < groups.end - groups.begin; at += kSuperGroups)
        decode_trits<kStride>(group + at * kLayout.group_bytes(), row_vector, out.codes[at][0][vector]);
    } else {
      decode_groups<kLayout, kStride>(group, groups.end - groups.begin, row_vector, out.codes[0][0][vector]);
    }
    for (int64_t at = groups.begin; at < groups.end; ++at, group += kLayout.group_bytes()) {
      const uint8_t* const record = panels.first + from + (at >> kSuperGroupsLog2) * kLayout.scale_stride();
      if (row_vector == 0)
        prefetch(prefetch_address<kLayout>(panels.own_prefetch, at) + from, bytes_per_group<kLayout>(),
                 panels.own_prefetch.to);
      for (int sub = 0; sub < kLayout.subs_per_group(); ++sub)
        store_floats(out.scale[at - groups.begin][sub][vector],
                     decoded_scale<kLayout>(record, group, row_vector, at % kSuperGroups, sub));
    }
  }
}

}  // namespace
}  // namespace ballast
