// Decodes the scales and minima of a group.
#pragma once

#include "cpu/panel_layout.h"

namespace ballast {
namespace {

// The common data of the scales of a block's groups: their address and, for super-blocks, the factors of
// scales and minima.
struct CommonScales {
  const uint8_t* first;
  Floats scale;
  Floats minimum;
};

// Scales and minima of the sub-blocks of a group. Minima have the sign for addition.
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

// For the groups from `begin` to the end of its super-block, if it has one, and the rows of one vector.
template <const QuantLayout& kLayout>
BALLAST_INLINE CommonScales common_scales(const uint8_t* panel, int row_vector, int64_t begin) {
  if constexpr (kLayout.is_flat()) {
    constexpr int kScaleBytes = kLayout.scales == Scales::kFlat ? 2 : 1;
    return {panel + begin * kLayout.scale_stride() + row_vector * kVectorRows * kScaleBytes, zero_floats(),
            zero_floats()};
  }
  const uint8_t* const record = panel + (begin >> kSuperGroupsLog2) * kLayout.scale_stride();
  const uint8_t* const halves = record + row_vector * kVectorRows * 2;
  const uint8_t* const bytes =
      record + kHalvesBytes * (kLayout.has_minimum ? 2 : 1) + row_vector * kVectorRows;
  return {bytes, halves_to_floats(halves),
          kLayout.has_minimum ? halves_to_floats(halves + kHalvesBytes) : zero_floats()};
}

// For the group `index` groups after the first one of `common`.
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

}  // namespace
}  // namespace ballast
