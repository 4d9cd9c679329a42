// The blocks of 16 rows as one panel (cpu/panel_layout.h).
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/panel_layout.h"
#include "quant/bytes16.h"
#include "quant/grid_blocks.h"
#include "quant/raw_blocks.h"

namespace ballast {

// 32 columns of 16 rows, a code a byte, [quad][row][column].
using GroupCodes = uint8_t[kGroupQuads][kQuadBytes];

inline void pack_nibbles(const GroupCodes& group, uint8_t* plane) {
  for (int line = 0; line < 4; ++line) {
    for (int i = 0; i < kQuadBytes; i += 16) {
      const Bytes16 low = load16(group[line] + i) & same16(15);
      const Bytes16 high = shift_left(load16(group[line + 4] + i) & same16(15), 4);
      store16(plane + kQuadBytes * line + i, low | high);
    }
  }
}

template <int kFrom>
void pack_pairs(const GroupCodes& group, uint8_t* plane) {
  for (int line = 0; line < 2; ++line) {
    for (int i = 0; i < kQuadBytes; i += 16) {
      Bytes16 bytes{};
      for (int s = 0; s < 4; ++s) {
        bytes |= shift_left(shift_right(load16(group[4 * line + s] + i), kFrom) & same16(3), 2 * s);
      }
      store16(plane + kQuadBytes * line + i, bytes);
    }
  }
}

template <int kFrom>
void pack_bits(const GroupCodes& group, uint8_t* plane) {
  for (int i = 0; i < kQuadBytes; i += 16) {
    Bytes16 bytes{};
    for (int quad = 0; quad < kGroupQuads; ++quad) {
      bytes |= shift_left(shift_right(load16(group[quad] + i), kFrom) & same16(1), quad);
    }
    store16(plane + i, bytes);
  }
}

constexpr int kNibblePlane = 4 * kQuadBytes;
constexpr int kPairPlane = 2 * kQuadBytes;

template <int kBits>
void pack_group(const GroupCodes& group, uint8_t* out) {
  if constexpr (kBits == 8) std::memcpy(out, group, sizeof(group));
  if constexpr (kBits >= 4 && kBits <= 6) pack_nibbles(group, out);
  if constexpr (kBits == 6) pack_pairs<4>(group, out + kNibblePlane);
  if constexpr (kBits == 5) pack_bits<4>(group, out + kNibblePlane);
  if constexpr (kBits <= 3) pack_pairs<0>(group, out);
  if constexpr (kBits == 3) pack_bits<2>(group, out + kPairPlane);
}

// Offsets of the rows' scales in a block's records: the blocks' own scales, then those of their sub-blocks.
template <const QuantLayout& kLayout>
void pack_scales(const RawBlock (&raws)[kPanelRows], uint8_t* record) {
  if constexpr (kLayout.scales == Scales::kPowers) {
    for (int row = 0; row < kPanelRows; ++row) record[row] = static_cast<uint8_t>(raws[row].scales[0]);
    return;
  }
  if constexpr (kLayout.scales == Scales::kE4M3) {
    for (int sub = 0; sub < kLayout.block_weights() / kLayout.sub_block; ++sub) {
      for (int row = 0; row < kPanelRows; ++row)
        record[sub * kPanelRows + row] = static_cast<uint8_t>(raws[row].scales[sub]);
    }
    return;
  }
  constexpr int kHalvesBytes = 2 * kPanelRows;
  for (int row = 0; row < kPanelRows; ++row) {
    std::memcpy(record + 2 * row, raws[row].scale.bytes, 2);
    if constexpr (kLayout.has_minimum)
      std::memcpy(record + kHalvesBytes + 2 * row, raws[row].minimum.bytes, 2);
  }
  if constexpr (!kLayout.is_flat() && kLayout.scales != Scales::kBlock) {
    constexpr int64_t kStride = sizeof(RawBlock);
    constexpr int kSubBytes = kSuperGroups * kLayout.subs_per_group() * kPanelRows;
    uint8_t* subs = record + kHalvesBytes * (kLayout.has_minimum ? 2 : 1);
    uint8_t by_sub[16 * kPanelRows];
    interleave_rows<uint8_t>(reinterpret_cast<const uint8_t*>(raws[0].scales), kStride, by_sub);
    std::memcpy(subs, by_sub, kSubBytes);
    if constexpr (kLayout.scales == Scales::kNested && kLayout.has_minimum) {
      interleave_rows<uint8_t>(raws[0].minima, kStride, by_sub);
      std::memcpy(subs + kSubBytes, by_sub, kSubBytes);
    }
  }
}

// A super-block's 64 quads of codes 0, 1 and 2.
inline void pack_trits(const GroupCodes (&groups)[kSuperGroups], uint8_t* out) {
  for (int line = 0; line < kTritLines; ++line) {
    for (int i = 0; i < kQuadBytes; ++i) {
      int number = 0;
      for (int digit = 0; digit < kTritsPerByte; ++digit) {
        const int quad = line * kTritsPerByte + digit;
        const int code =
            quad < kSuperGroups * kGroupQuads ? groups[quad / kGroupQuads][quad % kGroupQuads][i] : 0;
        number = 3 * number + code;
      }
      out[line * kQuadBytes + i] = static_cast<uint8_t>((number * 256 + 242) / 243);
    }
  }
}

// `rows` holds up to 16 rows' data; rows beyond num_rows become zero.
template <const QuantLayout& kLayout, class Block>
void pack_quantized(const uint8_t* const* rows, int num_rows, int64_t cols, uint8_t* panel) {
  constexpr int kBlockGroups = kLayout.block_weights() / kGroupCols;
  constexpr int kRecords = kLayout.is_flat() ? kBlockGroups : 1;
  uint8_t* groups = panel + kLayout.scale_bytes(cols);
  RawBlock raws[kPanelRows] = {};
  for (int64_t index = 0; index < cols / (kBlockGroups * kGroupCols); ++index) {
    for (int row = 0; row < num_rows; ++row) {
      // A copy: the compiler sees that it shares no memory with `raws`.
      const Block block = reinterpret_cast<const Block*>(rows[row])[index];
      read_raw(block, raws[row]);
    }
    pack_scales<kLayout>(raws, panel + index * kRecords * kLayout.scale_stride());
    GroupCodes by_group[kBlockGroups];
    for (int group = 0; group < kBlockGroups; ++group) {
      GroupCodes& codes = by_group[group];
      for (int half = 0; half < 2; ++half) {
        interleave_rows<uint32_t>(raws[0].codes + group * kGroupCols + 16 * half, sizeof(RawBlock),
                                  codes[4 * half]);
      }
      if constexpr (!kLayout.has_trits())
        pack_group<kLayout.bits>(codes, groups + (index * kBlockGroups + group) * kLayout.group_bytes());
    }
    if constexpr (kLayout.has_trits())
      pack_trits(by_group, groups + index * kBlockGroups * kLayout.group_bytes());
  }
}

// The same of a format whose codes are the points of a grid.
template <const QuantLayout& kLayout, class Block>
void pack_points(const uint8_t* const* rows, int num_rows, int64_t cols, uint8_t* panel) {
  constexpr Grid kGrid = kLayout.grid();
  constexpr int kPoints = kGroupCols / kGrid.weights;
  constexpr int kScaleBytes = (kLayout.scale_stride() - 2 * kPanelRows) / kPanelRows;
  uint8_t* group = panel + kLayout.scale_bytes(cols);
  PointBlock raws[kPanelRows] = {};
  for (int64_t index = 0; index < cols / kLayout.block_weights(); ++index) {
    for (int row = 0; row < num_rows; ++row) {
      const Block block = reinterpret_cast<const Block*>(rows[row])[index];
      read_points(block, raws[row]);
    }
    uint8_t* const record = panel + index * kLayout.scale_stride();
    for (int row = 0; row < kPanelRows; ++row) {
      std::memcpy(record + 2 * row, raws[row].scale.bytes, 2);
      for (int i = 0; i < kScaleBytes; ++i)
        record[2 * kPanelRows + i * kPanelRows + row] = raws[row].scales[i];
    }
    for (int i = 0; i < kSuperGroups; ++i, group += kLayout.group_bytes()) {
      for (int row = 0; row < kPanelRows; ++row) {
        for (int four = 0; four < kPoints; four += 4)
          std::memcpy(group + kPanelRows * four + 4 * row, raws[row].numbers + kPoints * i + four, 4);
        if constexpr (kGrid.sign_bits > 0)
          std::memcpy(group + kLayout.sign_plane() + 4 * row, raws[row].signs + 4 * i, 4);
        std::memcpy(group + kLayout.high_plane() + kGrid.high_bytes * row,
                    raws[row].high + kGrid.high_bytes * i, kGrid.high_bytes);
      }
    }
  }
}

// A panel of floats of kBytes bytes: [column][16 rows].
template <int kBytes>
void pack_floats(const uint8_t* const* rows, int num_rows, int64_t cols, uint8_t* panel) {
  using Unit = std::conditional_t<kBytes == 4, uint32_t, uint16_t>;
  static_assert(sizeof(Unit) == kBytes);
  constexpr int64_t kCols = 16 / kBytes;
  uint8_t block[kPanelRows][16] = {};
  int64_t col = 0;
  for (; col + kCols <= cols; col += kCols) {
    for (int row = 0; row < num_rows; ++row) std::memcpy(block[row], rows[row] + col * kBytes, 16);
    interleave_rows<Unit>(block[0], sizeof(block[0]), panel + col * kPanelRows * kBytes);
  }
  for (; col < cols; ++col) {
    for (int row = 0; row < num_rows; ++row) {
      std::memcpy(panel + (col * kPanelRows + row) * kBytes, rows[row] + col * kBytes, kBytes);
    }
  }
}

}  // namespace ballast
