#include "quant/panels.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "numa/memory.h"
#include "quant/matrix.h"
#include "quant/raw_blocks.h"

namespace ballast {
namespace {

// --- packing -----------------------------------------------------------------------------------------------

// 32 columns of 16 rows, a code a byte, [quad][row][column].
using GroupCodes = uint8_t[kGroupQuads][kQuadBytes];

void place_row(const uint8_t* codes, int row, GroupCodes& group) {
  for (int quad = 0; quad < kGroupQuads; ++quad) std::memcpy(&group[quad][4 * row], codes + 4 * quad, 4);
}

void pack_nibbles(const GroupCodes& group, uint8_t* plane) {
  for (int line = 0; line < 4; ++line) {
    for (int i = 0; i < kQuadBytes; ++i) {
      plane[kQuadBytes * line + i] = static_cast<uint8_t>((group[line][i] & 15) | group[line + 4][i] << 4);
    }
  }
}

template <int kFrom>
void pack_pairs(const GroupCodes& group, uint8_t* plane) {
  for (int line = 0; line < 2; ++line) {
    for (int i = 0; i < kQuadBytes; ++i) {
      int byte = 0;
      for (int s = 0; s < 4; ++s) byte |= ((group[4 * line + s][i] >> kFrom) & 3) << (2 * s);
      plane[kQuadBytes * line + i] = static_cast<uint8_t>(byte);
    }
  }
}

template <int kFrom>
void pack_bits(const GroupCodes& group, uint8_t* plane) {
  for (int i = 0; i < kQuadBytes; ++i) {
    int byte = 0;
    for (int quad = 0; quad < kGroupQuads; ++quad) byte |= ((group[quad][i] >> kFrom) & 1) << quad;
    plane[i] = static_cast<uint8_t>(byte);
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

// Where the scales of one row stand in a record: a block's own, then those of its sub-blocks.
void pack_scales(const QuantLayout& layout, const RawBlock& raw, int row, uint8_t* record) {
  constexpr int kHalvesBytes = 2 * kPanelRows;
  std::memcpy(record + 2 * row, raw.scale.bytes, 2);
  if (layout.has_minimum) std::memcpy(record + kHalvesBytes + 2 * row, raw.minimum.bytes, 2);
  if (layout.scales == Scales::kFlat) return;
  uint8_t* subs = record + kHalvesBytes * (layout.has_minimum ? 2 : 1) + row;
  const int num_subs = kSuperGroups * layout.subs_per_group();
  for (int sub = 0; sub < num_subs; ++sub) subs[sub * kPanelRows] = static_cast<uint8_t>(raw.scales[sub]);
  if (layout.scales == Scales::kNested && layout.has_minimum) {
    for (int sub = 0; sub < num_subs; ++sub) subs[(num_subs + sub) * kPanelRows] = raw.minima[sub];
  }
}

// `rows` holds up to 16 rows' data; rows beyond num_rows stay zero, as the fresh memory is.
template <const QuantLayout& kLayout, class Block>
void pack_quantized(const uint8_t* const* rows, int num_rows, int64_t cols, uint8_t* panel) {
  constexpr int kBlockGroups = kLayout.scales == Scales::kFlat ? 1 : kSuperGroups;
  uint8_t* groups = panel + kLayout.scale_bytes(cols);
  GroupCodes codes[kBlockGroups] = {};
  for (int64_t block = 0; block < cols / (kBlockGroups * kGroupCols); ++block) {
    for (int row = 0; row < num_rows; ++row) {
      RawBlock raw;
      read_raw(reinterpret_cast<const Block*>(rows[row])[block], raw);
      pack_scales(kLayout, raw, row, panel + block * kLayout.scale_stride());
      for (int group = 0; group < kBlockGroups; ++group)
        place_row(raw.codes + group * kGroupCols, row, codes[group]);
    }
    for (int group = 0; group < kBlockGroups; ++group) {
      pack_group<kLayout.bits>(codes[group], groups + (block * kBlockGroups + group) * kLayout.group_bytes());
    }
  }
}

template <int kBytes>
void pack_floats(const uint8_t* const* rows, int num_rows, int64_t cols, uint8_t* panel) {
  for (int64_t col = 0; col < cols; ++col) {
    for (int row = 0; row < num_rows; ++row) {
      std::memcpy(panel + (col * kPanelRows + row) * kBytes, rows[row] + col * kBytes, kBytes);
    }
  }
}

// --- unpacking ---------------------------------------------------------------------------------------------

int bits_at(const uint8_t* byte, int shift, int count) { return (*byte >> shift) & ((1 << count) - 1); }

// The code of a row's column (of 32) in a group.
int code_at(int bits, const uint8_t* group, int row, int col) {
  const int quad = col / 4;
  const uint8_t* in_line = group + 4 * row + col % 4;
  const auto nibble = [&] { return bits_at(in_line + quad % 4 * kQuadBytes, quad / 4 * 4, 4); };
  const auto pair = [&](int plane) {
    return bits_at(in_line + plane + quad / 4 * kQuadBytes, quad % 4 * 2, 2);
  };
  const auto bit = [&](int plane) { return bits_at(in_line + plane, quad, 1); };
  if (bits == 2) return pair(0);
  if (bits == 3) return pair(0) | bit(kPairPlane) << 2;
  if (bits == 4) return nibble();
  if (bits == 5) return nibble() | bit(kNibblePlane) << 4;
  if (bits == 6) return nibble() | pair(kNibblePlane) << 4;
  return in_line[quad * kQuadBytes];
}

F16 half_at(const uint8_t* from) { return {{from[0], from[1]}}; }

template <const QuantLayout& kLayout>
void unpack_quantized(const uint8_t* panel, int64_t cols, int row, float* out) {
  constexpr int kHalvesBytes = 2 * kPanelRows;
  constexpr bool kFlat = kLayout.scales == Scales::kFlat;
  constexpr int kSubs = kLayout.subs_per_group();
  const uint8_t* groups = panel + kLayout.scale_bytes(cols);
  for (int64_t col = 0; col < cols; ++col) {
    const int64_t group = col / kGroupCols;
    const int in_group = static_cast<int>(col % kGroupCols);
    const uint8_t* record = panel + (kFlat ? group : group / kSuperGroups) * kLayout.scale_stride();
    float scale = half_at(record + 2 * row).to_float();
    float minimum = kLayout.has_minimum ? half_at(record + kHalvesBytes + 2 * row).to_float() : 0.0f;
    if (!kFlat) {
      const uint8_t* subs = record + kHalvesBytes * (kLayout.has_minimum ? 2 : 1) + row;
      const int64_t sub = group % kSuperGroups * kSubs + in_group / kLayout.sub_block;
      const uint8_t byte = subs[sub * kPanelRows];
      if (kLayout.scales == Scales::kNibbles) {
        scale *= static_cast<float>(byte & 15);
        minimum *= static_cast<float>(byte >> 4);
      } else {
        scale *= static_cast<float>(static_cast<int8_t>(byte));
        if (kLayout.has_minimum)
          minimum *= static_cast<float>(subs[(kSuperGroups * kSubs + sub) * kPanelRows]);
      }
    }
    const int code = code_at(kLayout.bits, groups + group * kLayout.group_bytes(), row, in_group);
    const int offset = kLayout.offset_log2 == 0 ? 0 : 1 << kLayout.offset_log2;
    const float step = kLayout.is_table ? kIQ4Steps[code] : static_cast<float>(code - offset);
    out[col] = scale * step;
    if (kLayout.has_minimum) out[col] += kFlat ? minimum : -minimum;
  }
}

template <void (*kDequantize)(const uint8_t*, int64_t, float*), int kBytes>
void unpack_floats(const uint8_t* panel, int64_t cols, int row, float* out) {
  for (int64_t col = 0; col < cols; ++col)
    kDequantize(panel + (col * kPanelRows + row) * kBytes, 1, out + col);
}

// --- the table ---------------------------------------------------------------------------------------------

struct PanelFormat {
  int ggml_type;
  PanelKind kind;
  int64_t (*panel_bytes)(int64_t cols);
  void (*pack)(const uint8_t* const* rows, int num_rows, int64_t cols, uint8_t* panel);
  void (*unpack_row)(const uint8_t* panel, int64_t cols, int row, float* out);
};

template <const QuantLayout& kLayout, class Block>
constexpr PanelFormat quantized(int ggml_type, PanelKind kind) {
  return {ggml_type, kind, [](int64_t cols) { return kLayout.panel_bytes(cols); },
          pack_quantized<kLayout, Block>, unpack_quantized<kLayout>};
}

template <int kBytes>
int64_t float_panel_bytes(int64_t cols) {
  return (cols * kPanelRows * kBytes + 63) / 64 * 64;
}

const PanelFormat kFormats[kNumPanelKinds] = {
    {0, PanelKind::kF32, float_panel_bytes<4>, pack_floats<4>, unpack_floats<dequantize_f32, 4>},
    {1, PanelKind::kF16, float_panel_bytes<2>, pack_floats<2>, unpack_floats<dequantize_f16, 2>},
    {30, PanelKind::kBF16, float_panel_bytes<2>, pack_floats<2>, unpack_floats<dequantize_bf16, 2>},
    quantized<kPanelQ4_0, BlockQ4_0>(2, PanelKind::kQ4_0),
    quantized<kPanelQ4_1, BlockQ4_1>(3, PanelKind::kQ4_1),
    quantized<kPanelQ5_0, BlockQ5_0>(6, PanelKind::kQ5_0),
    quantized<kPanelQ5_1, BlockQ5_1>(7, PanelKind::kQ5_1),
    quantized<kPanelQ8_0, BlockQ8_0>(8, PanelKind::kQ8_0),
    quantized<kPanelQ2_K, BlockQ2_K>(10, PanelKind::kQ2_K),
    quantized<kPanelQ3_K, BlockQ3_K>(11, PanelKind::kQ3_K),
    quantized<kPanelQ4_K, BlockQ4_K>(12, PanelKind::kQ4_K),
    quantized<kPanelQ5_K, BlockQ5_K>(13, PanelKind::kQ5_K),
    quantized<kPanelQ6_K, BlockQ6_K>(14, PanelKind::kQ6_K),
    quantized<kPanelIQ4_NL, BlockIQ4_NL>(20, PanelKind::kIQ4_NL),
    quantized<kPanelIQ4_XS, BlockIQ4_XS>(23, PanelKind::kIQ4_XS),
};

const PanelFormat& format_of(PanelKind kind) { return kFormats[static_cast<int>(kind)]; }

PanelKind kind_of(const Matrix& source, PanelRows rows) {
  if (rows == PanelRows::kTransposed) return PanelKind::kF32;
  for (const PanelFormat& format : kFormats) {
    if (format.ggml_type == source.format().ggml_type) return format.kind;
  }
  BALLAST_CHECK(!"every format has panels");
  return PanelKind::kF32;
}

// The columns of the 16 or fewer rows of `source` from `row` on, as rows of a float panel.
void pack_transposed(const Matrix& source, int64_t first_row, int64_t num_rows, int64_t panel_index,
                     std::vector<float>& buffer, uint8_t* panel) {
  const int64_t block = source.format().block_weights;
  const int64_t begin = panel_index * kPanelRows;
  const int64_t end = std::min(begin + kPanelRows, source.cols());
  const int64_t piece_begin = begin / block * block;
  const int64_t piece_end = std::min((end + block - 1) / block * block, source.cols());
  buffer.resize(static_cast<size_t>(piece_end - piece_begin));
  for (int64_t col = 0; col < num_rows; ++col) {
    source.dequantize_piece(first_row + col, piece_begin, piece_end, buffer.data());
    std::memcpy(panel + col * kPanelRows * sizeof(float), buffer.data() + (begin - piece_begin),
                static_cast<size_t>(end - begin) * sizeof(float));
  }
}

}  // namespace

Panels::Panels(const PanelTarget& target, const Matrix& source, const PanelSlice& slice, PanelRows rows)
    : target_(target),
      heads_(slice.heads),
      panel_rows_(rows),
      kind_(kind_of(source, rows)),
      head_rows_(rows == PanelRows::kTransposed ? slice.cols.size() : heads_.num_rows),
      cols_(rows == PanelRows::kTransposed ? heads_.num_rows : slice.cols.size()),
      panels_per_head_((head_rows_ + kPanelRows - 1) / kPanelRows),
      panel_bytes_(format_of(kind_).panel_bytes(cols_)),
      pages_(static_cast<size_t>(num_panels() * panel_bytes_)) {
  BALLAST_CHECK(target.activation_bytes == 1 || target.activation_bytes == 2);
}

Panels::Panels(ThreadPool& pool, const PanelTarget& target, const Matrix& source, const HeadRows& heads,
               PanelRows rows)
    : Panels(target, source, {heads, {0, source.cols()}}, rows) {
  pool.parallel_for(num_panels(), [&](int64_t number) { pack_panel(source, 0, number); });
}

std::vector<std::shared_ptr<const Panels>> Panels::by_node(ThreadPool& pool, const PanelTarget& target,
                                                           const Matrix& source,
                                                           const std::vector<PanelSlice>& slices) {
  BALLAST_CHECK(slices.size() == static_cast<size_t>(pool.num_nodes()));
  std::vector<std::shared_ptr<Panels>> packed;
  std::vector<int64_t> counts;
  for (size_t node = 0; node < slices.size(); ++node) {
    const PanelSlice& slice = slices[node];
    const bool is_empty = slice.heads.num_rows == 0 || slice.cols.size() == 0;
    packed.emplace_back(is_empty ? nullptr : new Panels(target, source, slice, PanelRows::kAsStored));
    counts.push_back(is_empty ? 0 : packed.back()->num_panels());
    if (!is_empty) prefer_node(packed.back()->pages_, pool.node_index(static_cast<int>(node)));
  }
  pool.parallel_for_nodes(counts, [&](int node, int64_t number) {
    const size_t i = static_cast<size_t>(node);
    packed[i]->pack_panel(source, slices[i].cols.begin, number);
  });
  return {packed.begin(), packed.end()};
}

void Panels::pack_panel(const Matrix& source, int64_t first_col, int64_t number) {
  const int64_t head = number / panels_per_head_;
  const int64_t index = number % panels_per_head_;
  uint8_t* panel = pages_.data() + number * panel_bytes_;
  if (panel_rows_ == PanelRows::kTransposed) {
    std::vector<float> buffer;
    pack_transposed(source, heads_.begin(head), heads_.num_rows, index, buffer, panel);
    return;
  }
  const int64_t first = index * kPanelRows;
  const int num_rows = static_cast<int>(std::min<int64_t>(kPanelRows, head_rows_ - first));
  const uint8_t* row_data[kPanelRows];
  for (int row = 0; row < num_rows; ++row) {
    row_data[row] = source.piece_data(heads_.begin(head) + first + row, first_col);
  }
  format_of(kind_).pack(row_data, num_rows, cols_, panel);
}

void Panels::unpack_row(int64_t head, int64_t row, float* out) const {
  format_of(kind_).unpack_row(panel(head, row / kPanelRows), cols_, static_cast<int>(row % kPanelRows), out);
}

}  // namespace ballast
