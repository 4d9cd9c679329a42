// A matrix repacked into panels for the CPU kernels (cpu/panel_layout.h): from then on its only copy in
// memory.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/index_range.h"
#include "base/pages.h"
#include "cpu/kernels.h"
#include "quant/formats.h"
#include "threads/thread_pool.h"

namespace ballast {

class Matrix;

// Head h owns the rows h * stride + offset … + num_rows of a matrix.
struct HeadRows {
  int64_t num_heads;
  int64_t stride;
  int64_t offset;
  int64_t num_rows;

  int64_t begin(int64_t head) const { return head * stride + offset; }
  bool operator==(const HeadRows& other) const {
    return num_heads == other.num_heads && stride == other.stride && offset == other.offset &&
           num_rows == other.num_rows;
  }
};

// How the rows of a head are arranged in its panels.
enum class PanelRows {
  kAsStored,    // a panel's rows are the matrix's
  kTransposed,  // a panel's rows are the matrix's columns, as floats
};

// For PanelTarget: as many bytes as the weights' format has by default.
constexpr int kBytesByFormat = 0;

// Whose kernels multiply the panels, and how many bytes (1, 2 or kBytesByFormat) an activation is rounded to
// for quantised weights.
struct PanelTarget {
  const Kernels& kernels;
  int activation_bytes;
};

// The rows and columns of a matrix that one Panels holds; columns are whole blocks, or reach the row's end.
struct PanelSlice {
  HeadRows heads;
  IndexRange cols;
};

// A file that keeps one Panels beyond the process. A mapped file, in a file system in memory, contains the
// panels themselves. Otherwise they are read into memory; if the file is not filled yet, the caller writes
// `pages` to it later.
struct PanelFile {
  int file;  // open for reading, and for writing where it is mapped; as long as file_bytes() says
  bool is_mapped;
  bool is_filled;
  uint64_t checksum = 0;  // of the panels' whole pages: expected where it is filled, else computed
  std::shared_ptr<const Pages> pages;  // once there are panels
};

// Bytes of the panels of `num_heads` heads of [num_rows, cols] each. Throws std::invalid_argument for an
// unknown type.
int64_t panels_bytes(int ggml_type, int64_t num_heads, int64_t num_rows, int64_t cols, PanelRows rows);

class Panels {
 public:
  // Packs the rows of each head separately, on all threads of the pool. `source` must not be packed and is
  // not needed afterwards.
  // Panels come from `file` if it is filled. Throws std::runtime_error if the file is damaged, and
  // std::system_error if it cannot be read or has no room. Null: the panels are not kept.
  Panels(ThreadPool& pool, const PanelTarget& target, const Matrix& source, const HeadRows& heads,
         PanelRows rows, std::shared_ptr<PanelFile> file = nullptr);
  // slices[n], packed by the threads of the pool's node n into memory of that node; null for an empty slice.
  // files[n] keeps the panels of node n, or is null. Empty `files`: none are kept.
  static std::vector<std::shared_ptr<const Panels>> by_node(
      ThreadPool& pool, const PanelTarget& target, const Matrix& source,
      const std::vector<PanelSlice>& slices, const std::vector<std::shared_ptr<PanelFile>>& files = {});

  const Kernels& kernels() const { return target_.kernels; }
  int activation_bytes() const { return target_.activation_bytes; }
  const ActivationKernels& activation_kernels() const {
    return target_.kernels.by_bytes[target_.activation_bytes - 1];
  }
  const TokenBlock& token_block() const { return activation_kernels().token_block[static_cast<int>(kind_)]; }
  int64_t blocks_per_scale() const { return blocks_per_scale_; }
  const TokenOrder& token_order() const { return activation_kernels().token_order[static_cast<int>(kind_)]; }
  // Whether activations that were rounded for the one serve the other.
  bool takes_same_activations(const Panels& other) const {
    return &kernels() == &other.kernels() && activation_bytes() == other.activation_bytes() &&
           takes_quantized() == other.takes_quantized() && cols() == other.cols() &&
           blocks_per_scale() == other.blocks_per_scale();
  }
  const HeadRows& heads() const { return heads_; }
  PanelRows panel_rows() const { return panel_rows_; }
  PanelKind kind() const { return kind_; }
  bool takes_quantized() const { return takes_quantized_; }
  // Rows of a head, without padding, and columns of a row.
  int64_t head_rows() const { return head_rows_; }
  int64_t cols() const { return cols_; }
  int64_t panels_per_head() const { return panels_per_head_; }
  int64_t num_bytes() const { return static_cast<int64_t>(pages_->size()); }

  const uint8_t* panel(int64_t head, int64_t index) const {
    return pages_->data() + (head * panels_per_head_ + index) * panel_bytes_;
  }

  // Some of a head's panels as kernels take them; `next` as in PanelRun.
  PanelRun run(int64_t head, IndexRange range, const uint8_t* next = nullptr) const {
    return {panel(head, range.begin), panel_bytes_, range.size(), cols_,
            blocks_per_scale_,        next,         prefetching_};
  }

  // out [panels of the range, T, 16]; tokens as MultiplyPanels takes them. `next` as in PanelRun.
  void multiply(int64_t head, IndexRange range, const void* const* tokens, int64_t num_tokens, float* out,
                const uint8_t* next = nullptr) const {
    activation_kernels().multiply[static_cast<int>(kind_)](run(head, range, next), tokens, num_tokens,
                                                           {out, num_tokens * kPanelRows});
  }

  // The same with tokens that are arranged in token_order().
  void multiply(int64_t head, IndexRange range, const ArrangedTokens& arranged, const void* const* tokens,
                int64_t num_tokens, float* out, const uint8_t* next = nullptr) const {
    token_order().multiply(run(head, range, next), arranged, tokens, num_tokens,
                           {out, num_tokens * kPanelRows});
  }

  // A row of a head's panels as floats [cols], exactly as the format defines it.
  void unpack_row(int64_t head, int64_t row, float* out) const;

 private:
  // Allocates memory for the slice, which is yet to be packed.
  Panels(const PanelTarget& target, const Matrix& source, const PanelSlice& slice, PanelRows rows,
         std::shared_ptr<PanelFile> file);

  int64_t num_panels() const { return heads_.num_heads * panels_per_head_; }
  // Memory and files are handled in chunks of a huge page.
  bool is_filled() const { return file_ != nullptr && file_->is_filled; }
  IndexRange chunk(int64_t index) const;
  int64_t num_chunks() const;
  int64_t num_taken() const;
  void take(int64_t index);
  void fetch(int64_t index);
  void sum(int64_t index);
  void finish();

  void pack_run(const Matrix& source, int64_t first_col, IndexRange panels);
  void pack_transposed(const Matrix& source, int64_t head, IndexRange cols);

  const PanelTarget target_;
  const HeadRows heads_;
  const PanelRows panel_rows_;
  const PanelKind kind_;
  const bool takes_quantized_;
  const int64_t head_rows_;
  const int64_t cols_;
  const int64_t blocks_per_scale_;  // of whole rows: a slice of columns is rounded like the whole
  const int64_t panels_per_head_;
  const int64_t panel_bytes_;
  const Prefetching prefetching_ = prefetching_of_this_chip();
  const std::shared_ptr<PanelFile> file_;
  const std::shared_ptr<const Pages> pages_;
  std::vector<uint64_t> sums_;               // of the chunks, while it is loaded
  std::unique_ptr<std::once_flag[]> taken_;  // the chunks of memory, while it is packed
};

}  // namespace ballast
