#include "quant/panels.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"
#include "numa/memory.h"
#include "quant/matrix.h"
#include "quant/pack_rows.h"

namespace ballast {
namespace {

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

// The same of a column of a panel whose codes are digits to the base of 3.
int code_of_trits(const uint8_t* groups, int64_t col, int row) {
  constexpr int kBlockCols = kSuperGroups * kGroupCols;
  const int quad = static_cast<int>(col % kBlockCols / 4);
  const uint8_t* line = groups + (col / kBlockCols * kTritLines + quad / kTritsPerByte) * kQuadBytes;
  return trit_at(line[4 * row + col % 4], quad % kTritsPerByte);
}

F16 half_at(const uint8_t* from) { return {{from[0], from[1]}}; }

template <const QuantLayout& kLayout>
void unpack_quantized(const uint8_t* panel, int64_t cols, int row, float* out) {
  constexpr int kHalvesBytes = 2 * kPanelRows;
  constexpr bool kPowers = kLayout.scales == Scales::kPowers;
  constexpr bool kE4M3 = kLayout.scales == Scales::kE4M3;
  constexpr bool kFlat = kLayout.is_flat();
  constexpr int kSubs = kLayout.subs_per_group();
  constexpr TableSteps kSteps = steps_of(kLayout.table);
  const uint8_t* groups = panel + kLayout.scale_bytes(cols);
  for (int64_t col = 0; col < cols; ++col) {
    const int64_t group = col / kGroupCols;
    const int in_group = static_cast<int>(col % kGroupCols);
    const uint8_t* record = panel + (kFlat ? group : group / kSuperGroups) * kLayout.scale_stride();
    float scale = kPowers ? power_of_two(record[row])
                  : kE4M3 ? half_of_e4m3(record[in_group / kLayout.sub_block * kPanelRows + row])
                          : half_at(record + 2 * row).to_float();
    float minimum = kLayout.has_minimum ? half_at(record + kHalvesBytes + 2 * row).to_float() : 0.0f;
    if (!kFlat && kLayout.scales != Scales::kBlock) {
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
    const uint8_t* codes = groups + group * kLayout.group_bytes();
    const int code =
        kLayout.has_trits() ? code_of_trits(groups, col, row) : code_at(kLayout.bits, codes, row, in_group);
    const int step = kLayout.has_table() ? kSteps.by_code[code] : code - kLayout.offset;
    out[col] = scale * static_cast<float>(step);
    if (kLayout.has_minimum) out[col] += kFlat ? minimum : -minimum;
  }
}

// The same of a format whose codes are the points of a grid.
template <const QuantLayout& kLayout>
void unpack_points(const uint8_t* panel, int64_t cols, int row, float* out) {
  constexpr Grid kGrid = kLayout.grid();
  constexpr int kScaleBytes = (kLayout.scale_stride() - 2 * kPanelRows) / kPanelRows;
  const uint8_t* group = panel + kLayout.scale_bytes(cols);
  for (int64_t index = 0; index < cols / kLayout.block_weights(); ++index) {
    const uint8_t* const record = panel + index * kLayout.scale_stride();
    PointBlock block{};
    block.scale = half_at(record + 2 * row);
    for (int i = 0; i < kScaleBytes; ++i) block.scales[i] = record[2 * kPanelRows + i * kPanelRows + row];
    for (int i = 0; i < kSuperGroups; ++i, group += kLayout.group_bytes()) {
      constexpr int kPoints = kGroupCols / kGrid.weights;
      for (int four = 0; four < kPoints; four += 4)
        std::memcpy(block.numbers + kPoints * i + four, group + kPanelRows * four + 4 * row, 4);
      if constexpr (kGrid.sign_bits > 0)
        std::memcpy(block.signs + 4 * i, group + kLayout.sign_plane() + 4 * row, 4);
      std::memcpy(block.high + kGrid.high_bytes * i, group + kLayout.high_plane() + kGrid.high_bytes * row,
                  kGrid.high_bytes);
    }
    dequantize_points<kLayout>(block, out + index * kLayout.block_weights());
  }
}

template <void (*kDequantize)(const uint8_t*, int64_t, float*), int kBytes>
void unpack_floats(const uint8_t* panel, int64_t cols, int row, float* out) {
  for (int64_t col = 0; col < cols; ++col)
    kDequantize(panel + (col * kPanelRows + row) * kBytes, 1, out + col);
}

// How panels of a kind are made and read back.
struct PanelFormat {
  int64_t (*panel_bytes)(int64_t cols);
  void (*pack)(const uint8_t* const* rows, int num_rows, int64_t cols, uint8_t* panel);
  void (*unpack_row)(const uint8_t* panel, int64_t cols, int row, float* out);
};

template <const QuantLayout& kLayout>
int64_t quantized_panel_bytes(int64_t cols) {
  return kLayout.panel_bytes(cols);
}

template <const QuantLayout& kLayout, class Block>
constexpr PanelFormat quantized_format() {
  if constexpr (kLayout.has_grid())
    return {quantized_panel_bytes<kLayout>, pack_points<kLayout, Block>, unpack_points<kLayout>};
  else
    return {quantized_panel_bytes<kLayout>, pack_quantized<kLayout, Block>, unpack_quantized<kLayout>};
}

template <int kBytes>
int64_t float_panel_bytes(int64_t cols) {
  return (cols * kPanelRows * kBytes + 63) / 64 * 64;
}

#define BALLAST_FLOATS(name, type, bytes) \
  {float_panel_bytes<bytes>, pack_floats<bytes>, unpack_floats<dequantize_##name, bytes>},
#define BALLAST_QUANTIZED(name, ...) quantized_format<kPanel##name, Block##name>(),
constexpr PanelFormat kFormats[kNumPanelKinds] = {BALLAST_FORMATS(BALLAST_FLOATS, BALLAST_QUANTIZED)};
#undef BALLAST_QUANTIZED
#undef BALLAST_FLOATS

const PanelFormat& format_of(PanelKind kind) { return kFormats[static_cast<int>(kind)]; }

PanelKind kind_of(const Matrix& source, PanelRows rows) {
  return rows == PanelRows::kTransposed ? PanelKind::kF32 : source.format().kind;
}

PanelTarget with_bytes(const PanelTarget& target, const FormatTraits& format) {
  if (target.activation_bytes != kBytesByFormat) return target;
  return {target.kernels, default_activation_bytes(format)};
}

// How many panels a task packs.
int64_t panels_per_run(const Matrix& source, int64_t num_panels, int num_threads) {
  constexpr int64_t kRunBytes = int64_t{2} << 20;  // of the source: many pages a system call
  constexpr int64_t kRunsPerThread = 4;
  const int64_t panel_bytes = std::max<int64_t>(kPanelRows * source.row_bytes(), 1);
  return std::clamp<int64_t>(num_panels / (kRunsPerThread * num_threads), 1,
                             std::max<int64_t>(kRunBytes / panel_bytes, 1));
}

std::shared_ptr<const Pages> make_pages(int64_t num_bytes, const PanelFile* file) {
  const size_t size = static_cast<size_t>(num_bytes);
  if (file != nullptr && file->is_mapped) return std::make_shared<const Pages>(size, file->file);
  return std::make_shared<const Pages>(size);
}

}  // namespace

Panels::Panels(const PanelTarget& target, const Matrix& source, const PanelSlice& slice, PanelRows rows,
               std::shared_ptr<PanelFile> file)
    : target_(with_bytes(target, source.format())),
      heads_(slice.heads),
      panel_rows_(rows),
      kind_(kind_of(source, rows)),
      takes_quantized_(all_formats()[static_cast<size_t>(kind_)].layout != nullptr),
      head_rows_(rows == PanelRows::kTransposed ? slice.cols.size() : heads_.num_rows),
      cols_(rows == PanelRows::kTransposed ? heads_.num_rows : slice.cols.size()),
      blocks_per_scale_(ballast::blocks_per_scale(source.cols())),
      panels_per_head_((head_rows_ + kPanelRows - 1) / kPanelRows),
      panel_bytes_(format_of(kind_).panel_bytes(cols_)),
      file_(num_panels() > 0 ? std::move(file) : nullptr),
      pages_(make_pages(num_panels() * panel_bytes_, file_.get())) {
  BALLAST_CHECK(target_.activation_bytes == 1 || target_.activation_bytes == 2);
  if (!is_filled()) taken_ = std::make_unique<std::once_flag[]>(static_cast<size_t>(num_taken()));
  if (file_ != nullptr) sums_.resize(static_cast<size_t>(num_chunks()));
}

// Whole pages are read and summed up: what follows the last panel is zero.
int64_t Panels::num_chunks() const {
  return file_ == nullptr ? 0 : Chunks(num_bytes(), static_cast<int64_t>(kHugePageBytes)).count();
}

IndexRange Panels::chunk(int64_t index) const {
  IndexRange range = Chunks(num_bytes(), static_cast<int64_t>(kHugePageBytes))[index];
  const int64_t page = static_cast<int64_t>(page_bytes());
  range.end = (range.end + page - 1) / page * page;
  return range;
}

// How many chunks of memory are taken before it is packed into; none where it is filled.
int64_t Panels::num_taken() const {
  if (is_filled()) return 0;
  return Chunks(static_cast<int64_t>(pages_->mapped_size()), static_cast<int64_t>(kHugePageBytes)).count();
}

// Each chunk by one thread: of two that write to a huge page first, both would clear one, for nothing.
void Panels::take(int64_t index) {
  const size_t begin = static_cast<size_t>(index) * kHugePageBytes;
  const size_t end = std::min(begin + kHugePageBytes, pages_->mapped_size());
  if (file_ != nullptr && file_->is_mapped) return take_file_memory(file_->file, *pages_, begin, end);
  take_memory(*pages_, begin, end);
}

void Panels::fetch(int64_t index) {
  const IndexRange range = chunk(index);
  if (file_->is_mapped) map_ahead(pages_->data() + range.begin, static_cast<size_t>(range.size()));
  for (int64_t at = range.begin; !file_->is_mapped && at < range.end;) {
    const ssize_t count = pread(file_->file, pages_->data() + at, static_cast<size_t>(range.end - at), at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::system_error(errno, std::generic_category(), "reading packed weights");
    if (count == 0) throw std::runtime_error("a file of packed weights ends too soon");
    at += count;
  }
  sum(index);
}

void Panels::sum(int64_t index) {
  const IndexRange range = chunk(index);
  sums_[static_cast<size_t>(index)] =
      checksum(pages_->data() + range.begin, static_cast<size_t>(range.size()));
}

void Panels::finish() {
  taken_ = nullptr;
  if (file_ == nullptr) return;
  const uint64_t found = checksum(sums_.data(), sums_.size() * sizeof(uint64_t));
  if (file_->is_filled && found != file_->checksum)
    throw std::runtime_error("a file of packed weights is damaged: its checksum differs");
  file_->checksum = found;
  file_->pages = pages_;
  sums_ = {};
}

Panels::Panels(ThreadPool& pool, const PanelTarget& target, const Matrix& source, const HeadRows& heads,
               PanelRows rows, std::shared_ptr<PanelFile> file)
    : Panels(target, source, {heads, {0, source.cols()}}, rows, std::move(file)) {
  if (is_filled()) {
    pool.parallel_for(num_chunks(), [&](int64_t index) { fetch(index); });
    finish();
    return;
  }
  if (rows == PanelRows::kTransposed) {
    pool.parallel_for(num_taken(), [&](int64_t index) { take(index); });
    // Blocks of the source are as wide as several panels.
    const Chunks strips(source.cols(), std::max<int64_t>(source.format().block_weights, kPanelRows));
    pool.parallel_for(heads.num_heads * strips.count(), [&](int64_t task) {
      pack_transposed(source, task / strips.count(), strips[task % strips.count()]);
    });
  } else {
    const Chunks runs(num_panels(), panels_per_run(source, num_panels(), pool.num_threads()));
    pool.parallel_for(runs.count(), [&](int64_t run) { pack_run(source, 0, runs[run]); });
  }
  pool.parallel_for(num_chunks(), [&](int64_t index) { sum(index); });
  finish();
}

std::vector<std::shared_ptr<const Panels>> Panels::by_node(
    ThreadPool& pool, const PanelTarget& target, const Matrix& source, const std::vector<PanelSlice>& slices,
    const std::vector<std::shared_ptr<PanelFile>>& files) {
  BALLAST_CHECK(slices.size() == static_cast<size_t>(pool.num_nodes()));
  BALLAST_CHECK(files.empty() || files.size() == slices.size());
  std::vector<std::shared_ptr<Panels>> packed(slices.size());
  std::vector<Chunks> runs;
  std::vector<int64_t> counts, summed;
  for (size_t node = 0; node < slices.size(); ++node) {
    const PanelSlice& slice = slices[node];
    int64_t num_panels = 0;
    if (slice.heads.num_rows > 0 && slice.cols.size() > 0) {
      packed[node].reset(
          new Panels(target, source, slice, PanelRows::kAsStored, files.empty() ? nullptr : files[node]));
      prefer_node(*packed[node]->pages_, pool.node_index(static_cast<int>(node)));
      num_panels = packed[node]->num_panels();
    }
    const Panels* panels = packed[node].get();
    const bool has_file = panels != nullptr && panels->file_ != nullptr;
    const bool is_filled = has_file && panels->is_filled();
    runs.emplace_back(num_panels, panels_per_run(source, num_panels, pool.threads_per_node()[node]));
    counts.push_back(is_filled ? panels->num_chunks() : runs.back().count());
    summed.push_back(has_file && !is_filled ? panels->num_chunks() : 0);
  }
  const auto of = [&](int node) -> Panels& { return *packed[static_cast<size_t>(node)]; };
  pool.parallel_for_nodes(counts, [&](int node, int64_t index) {
    const size_t i = static_cast<size_t>(node);
    if (of(node).is_filled()) return of(node).fetch(index);
    of(node).pack_run(source, slices[i].cols.begin, runs[i][index]);
  });
  pool.parallel_for_nodes(summed, [&](int node, int64_t index) { of(node).sum(index); });
  for (const auto& panels : packed)
    if (panels != nullptr) panels->finish();
  return {packed.begin(), packed.end()};
}

// A panel's rows are read side by side, more streams than the hardware prefetcher follows. So the rows are
// prefetched in software while the previous panel is packed.
void ask_ahead(const uint8_t* data, size_t num_bytes) {
  for (size_t at = 0; at < num_bytes; at += 64) __builtin_prefetch(data + at, 0, 2);
}

// Panels by number, head after head.
void Panels::pack_run(const Matrix& source, int64_t first_col, IndexRange panels) {
  const PanelFormat& format = format_of(kind_);
  const auto first_row = [&](int64_t number) {
    return heads_.begin(number / panels_per_head_) + number % panels_per_head_ * kPanelRows;
  };
  const auto num_rows_of = [&](int64_t number) {
    const int64_t left = head_rows_ - number % panels_per_head_ * kPanelRows;
    return static_cast<int>(std::min<int64_t>(kPanelRows, left));
  };
  // Memory is cleared right before packing, while a cache still holds it. The last chunk comes first, because
  // the thread that packs the previous run clears the chunk that both share.
  constexpr int64_t kPiece = static_cast<int64_t>(kHugePageBytes);
  const int64_t first = panels.begin * panel_bytes_ / kPiece;
  for (int64_t i = (panels.end * panel_bytes_ + kPiece - 1) / kPiece - 1; i >= first; --i)
    std::call_once(taken_[static_cast<size_t>(i)], [&] { take(i); });
  const uint8_t* begin = source.row_data(first_row(panels.begin));
  const uint8_t* last = source.row_data(first_row(panels.end - 1));
  map_ahead(begin, static_cast<size_t>(last - begin + num_rows_of(panels.end - 1) * source.row_bytes()));
  for (int64_t number = panels.begin; number < panels.end; ++number) {
    const int num_rows = num_rows_of(number);
    const uint8_t* rows[kPanelRows];
    for (int row = 0; row < num_rows; ++row)
      rows[row] = source.piece_data(first_row(number) + row, first_col);
    if (number + 1 < panels.end)
      ask_ahead(source.row_data(first_row(number + 1)),
                static_cast<size_t>(num_rows_of(number + 1) * source.row_bytes()));
    format.pack(rows, num_rows, cols_, pages_->data() + number * panel_bytes_);
  }
}

// The columns of a head of `source` as rows of float panels; `cols` begin and end with blocks.
void Panels::pack_transposed(const Matrix& source, int64_t head, IndexRange cols) {
  std::vector<float> values(static_cast<size_t>(cols.size()));
  for (int64_t col = 0; col < cols_; ++col) {
    source.dequantize_slice(heads_.begin(head) + col, cols.begin, cols.end, values.data());
    for (int64_t row = 0; row < cols.size(); row += kPanelRows) {
      const int64_t index = head * panels_per_head_ + (cols.begin + row) / kPanelRows;
      float* panel = reinterpret_cast<float*>(pages_->data() + index * panel_bytes_);
      const int64_t num_rows = std::min<int64_t>(kPanelRows, cols.size() - row);
      std::copy_n(values.data() + row, num_rows, panel + col * kPanelRows);
    }
  }
}

int64_t panels_bytes(int ggml_type, int64_t num_heads, int64_t num_rows, int64_t cols, PanelRows rows) {
  // A row alone in its panel takes 64 bytes a weight at most, so that no product below exceeds 64 bits.
  int64_t most = int64_t{1} << 56;
  for (int64_t size : {num_heads, num_rows, cols}) {
    most /= std::max<int64_t>(size, 1);
    if (size < 0 || most == 0) {
      throw std::invalid_argument(std::to_string(num_heads) + " heads of " + std::to_string(num_rows) +
                                  " rows and " + std::to_string(cols) +
                                  " cols; expected sizes of 0 or more, and 2^56 weights at most");
    }
  }
  const bool is_transposed = rows == PanelRows::kTransposed;
  const Matrix shape(nullptr, 0, ggml_type, 0, cols);
  const int64_t num_panels = ((is_transposed ? cols : num_rows) + kPanelRows - 1) / kPanelRows;
  const PanelFormat& format = format_of(kind_of(shape, rows));
  return num_heads * num_panels * format.panel_bytes(is_transposed ? num_rows : cols);
}

void Panels::unpack_row(int64_t head, int64_t row, float* out) const {
  format_of(kind_).unpack_row(panel(head, row / kPanelRows), cols_, static_cast<int>(row % kPanelRows), out);
}

}  // namespace ballast
