// Decodes groups of panels whose codes are the points of a grid, on the names of an instruction set's simd.h.
// Included by panel-inl.h, with internal linkage as there.
#pragma once

#include "cpu/grid_layout.h"

namespace ballast {
namespace {

// A point's weights side by side, as they are looked up: magnitudes or, where weights are shifted, eighths of
// those that are shifted up, 128 added.
template <CodeTable kTable>
struct PointBytes {
  static constexpr Grid kGrid = grid_of(kTable);
  using Point = uint64_t;

  alignas(64) Point points[1 << kGrid.index_bits];

  constexpr PointBytes() : points{} {
    for (int index = 0; index < 1 << kGrid.index_bits; ++index) {
      for (int i = 0; i < kGrid.weights; ++i) {
        const int number = kGrid.points[index] >> i * kGrid.level_bits() & ((1 << kGrid.level_bits()) - 1);
        const int level = kGrid.levels[number];
        const int byte = kGrid.is_shifted() ? 8 * level + 1 + 128 : level;
        points[index] |= static_cast<Point>(byte) << 8 * i;
      }
    }
  }
};

template <CodeTable kTable>
static constexpr PointBytes<kTable> kPointBytes{};

// Points of a part's rows, a quad every kStride bytes: without signs, and shifted weights 128 too large.
template <const QuantLayout& kLayout, int kStride>
BALLAST_INLINE void look_up_points(const uint8_t* group, int part, uint8_t* out) {
  constexpr Grid kGrid = kLayout.grid();
  for (int i = 0; i < kVectorRows; ++i) {
    const int row = part * kVectorRows + i;
    for (int point = 0; point < kGroupCols / kGrid.weights; ++point) {
      uint64_t weights = kPointBytes<kLayout.table>.points[point_at<kLayout>(group, row, point)];
      if constexpr (kGrid.is_shifted()) {
        if (is_shifted_down<kLayout>(group, row, point)) weights -= 0x0202020202020202;
      }
      uint8_t* const to = out + point * (kGrid.weights / 4) * kStride + 4 * i;
      const uint32_t first = static_cast<uint32_t>(weights);
      __builtin_memcpy(to, &first, sizeof(first));
      if constexpr (kGrid.weights == 8) {
        const uint32_t second = static_cast<uint32_t>(weights >> 32);
        __builtin_memcpy(to + kStride, &second, sizeof(second));
      }
    }
  }
}

// All eight signs of each byte that has seven: the eighth makes their number even.
BALLAST_INLINE Bytes with_eighth_sign(Bytes seven) {
  const Bytes signs = and_bytes(seven, bytes_of(0x7f));
  Bytes count = xor_bytes(signs, shift_right<4>(signs));
  count = xor_bytes(count, shift_right<2>(count));
  count = xor_bytes(count, shift_right<1>(count));
  return or_bytes(signs, shift_left<7>(and_bytes(count, bytes_of(1))));
}

template <int kStride, int kQuad = 0>
BALLAST_INLINE void give_signs(Bytes signs, uint8_t* out) {
  if constexpr (kQuad < kGroupQuads) {
    uint8_t* const quad = out + kQuad * kStride;
    store_codes(quad, from_signed(negate_where<kQuad / 2, kQuad % 2>(load_bytes(quad), signs)));
    give_signs<kStride, kQuad + 1>(signs, out);
  }
}

// The codes of a part's rows as they are multiplied, a quad every kStride bytes.
template <const QuantLayout& kLayout, int kStride>
BALLAST_INLINE void decode_points(const uint8_t* group, int part, uint8_t* out) {
  constexpr Grid kGrid = kLayout.grid();
  look_up_points<kLayout, kStride>(group, part, out);
  if constexpr (kGrid.is_shifted()) {
    if constexpr (!kWideIsBiased) {
      for (int quad = 0; quad < kGroupQuads; ++quad)
        store_codes(out + quad * kStride, wide_codes(load_bytes(out + quad * kStride)));
    }
  } else {
    const Bytes signs = load_bytes(group + kLayout.sign_plane() + part * kPartBytes);
    give_signs<kStride>(kGrid.sign_bits == 7 ? with_eighth_sign(signs) : signs, out);
  }
}

#ifndef BALLAST_PERMUTES_POINTS
template <const QuantLayout& kLayout, int kStride>
BALLAST_INLINE bool decode_by_permutes(const uint8_t*, int64_t, uint8_t*) {
  return false;
}
#endif

// The codes of groups that follow each other, as decode_points has those of one.
template <const QuantLayout& kLayout, int kStride>
BALLAST_INLINE void decode_groups(const uint8_t* first, int64_t count, int part, uint8_t* out) {
  if (decode_by_permutes<kLayout, kStride>(first, count, out)) return;
  for (int64_t index = 0; index < count; ++index) {
    decode_points<kLayout, kStride>(first + index * kLayout.group_bytes(), part,
                                    out + index * kGroupQuads * kStride);
  }
}

// n of the scales of a group's sub-blocks, which are 2 n + 1. `index` is the group's in its super-block.
template <const QuantLayout& kLayout>
BALLAST_INLINE Ints sub_scale(const uint8_t* record, const uint8_t* group, int part, int64_t index, int sub) {
  if constexpr (kLayout.scales == Scales::kOddNibbles) {
    constexpr bool kHasTwo = kLayout.subs_per_group() == 2;
    const uint8_t* const bytes = record + 2 * kPanelRows + (kHasTwo ? index : index / 2) * kPanelRows;
    const Ints both = load_int8(bytes + part * kVectorRows);
    return (kHasTwo ? sub : index % 2) == 0 ? low_nibbles(both) : high_nibbles(both);
  } else if constexpr (kLayout.grid().is_shifted()) {
    const Ints nibbles = load_uint16(group + kLayout.high_plane() + part * kVectorRows * 2);
    const auto bit = [&](Ints shifted, int place) { return and_bytes(shifted, broadcast_int(1 << place)); };
    return or_bytes(bit(shift_right_ints<3>(nibbles), 0),
                    or_bytes(bit(shift_right_ints<6>(nibbles), 1), bit(shift_right_ints<9>(nibbles), 2)));
  } else {
    const Ints words = load_bytes(group + kLayout.sign_plane() + part * kPartBytes);
    const Ints tops = and_bytes(shift_right_ints<7>(words), broadcast_int(0x01010101));
    const Ints four = or_bytes(or_bytes(tops, shift_right_ints<7>(tops)),
                               or_bytes(shift_right_ints<14>(tops), shift_right_ints<21>(tops)));
    return and_bytes(four, broadcast_int(15));
  }
}

template <const QuantLayout& kLayout>
BALLAST_INLINE Floats point_scale(const uint8_t* record, const uint8_t* group, int part, int64_t index,
                                  int sub) {
  constexpr float kUnit = 1.0f / (1 << kLayout.grid().scale_log2);
  const Ints odd =
      add_ints(shift_left_ints<1>(sub_scale<kLayout>(record, group, part, index, sub)), broadcast_int(1));
  const Floats scale = multiply(halves_to_floats(record + part * kVectorRows * 2), broadcast_float(kUnit));
  return multiply(scale, to_floats(odd));
}

}  // namespace
}  // namespace ballast
