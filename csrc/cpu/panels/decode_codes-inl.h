// Decodes the codes of one quad from the planes of its group.
#pragma once

#include "cpu/panel_layout.h"

namespace ballast {
namespace {

// Vectors are numbered across the rows of adjacent panels, kPanelVectors per panel.
constexpr int panel_index(int vector) { return vector / kPanelVectors; }
constexpr int row_vector_of(int vector) { return vector % kPanelVectors; }

// The codes of quad kQuad, from the planes of a group.
template <int kQuad>
BALLAST_INLINE Bytes nibble_quad(const uint8_t* plane) {
  const Bytes line = load_bytes(plane + kQuad % 4 * kQuadBytes);
  return and_bytes(kQuad < 4 ? line : shift_right<4>(line), bytes_of(0x0f));
}

// Two bits, moved to kTo and kTo + 1.
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

}  // namespace
}  // namespace ballast
