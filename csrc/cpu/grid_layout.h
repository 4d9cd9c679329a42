// Reads single numbers of panels whose codes are grid points.
//
// Compiled into objects for instruction sets that the host may not have: see cpu/isa_namespace.h.
#pragma once

#include <cstdint>

#include "cpu/isa_namespace.h"
#include "cpu/panel_layout.h"

namespace ballast {
inline namespace BALLAST_ISA_NAMESPACE {

// The four nibbles of a row in a plane of two bytes per row.
inline int nibbles_at(const uint8_t* plane, int row) { return plane[2 * row] | plane[2 * row + 1] << 8; }

// The number of a point of a row in a group.
template <const QuantLayout& kLayout>
inline int point_at(const uint8_t* group, int row, int point) {
  constexpr Grid kGrid = kLayout.grid();
  const uint8_t* const signs = group + kLayout.sign_plane();
  const uint8_t* const high = group + kLayout.high_plane();
  const int low = group[point / 4 * kQuadBytes + 4 * row + point % 4];
  if constexpr (kGrid.high_bytes == 1) {
    constexpr int kBits = kGrid.index_bits - 8;
    return low | (high[row] >> kBits * point & ((1 << kBits) - 1)) << 8;
  }
  if constexpr (kGrid.high_bytes == 2) return low | (nibbles_at(high, row) >> 4 * point & 7) << 8;
  if constexpr (kGrid.index_bits == 9) return low | signs[4 * row + point] >> 7 << 8;
  return low;
}

// Whether the weights of a point are shifted down instead of up. It is the same for all points of a group if
// the group's scale is in the high bits.
template <const QuantLayout& kLayout>
inline bool is_shifted_down(const uint8_t* group, int row, int point) {
  const int bit = kLayout.scales == Scales::kOddInCodes ? 15 : 4 * point + 3;
  return nibbles_at(group + kLayout.high_plane(), row) >> bit & 1;
}

}  // namespace BALLAST_ISA_NAMESPACE
}  // namespace ballast
