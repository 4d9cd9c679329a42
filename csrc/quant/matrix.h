// A row-major matrix in one of GGUF's formats: seen where it lies, or repacked for the kernels of an
// instruction set.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "quant/formats.h"
#include "quant/panels.h"

namespace ballast {

class Matrix {
 public:
  // Borrows `data`, `num_bytes` long, at any address. `scales`: what products with its rows are multiplied
  // by: nothing, one number, or one for each of as many equal parts of the rows, an expert each. Throws
  // std::invalid_argument when the type is unknown, `cols` is no multiple of its block, the byte count is not
  // that of rows * cols weights, or there are scales that no such parts have.
  Matrix(const void* data, int64_t num_bytes, int ggml_type, int64_t rows, int64_t cols,
         std::vector<float> scales = {});

  const FormatTraits& format() const { return *format_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  const std::vector<float>& scales() const { return scales_; }
  int64_t num_scales() const { return static_cast<int64_t>(scales_.size()); }
  // Factor of a range of rows; 1 if there is none. Weights read or packed from this matrix do not include it:
  // the multiplication applies it.
  float scale(int64_t part = 0) const {
    if (scales_.empty()) return 1.0f;
    return scales_[scales_.size() == 1 ? 0 : static_cast<size_t>(part)];
  }
  // Size of the blocks in GGUF's format.
  int64_t num_bytes() const { return rows_ * row_bytes_; }

  // The same matrix, its heads' rows repacked; the data that it was made over is not needed any more. Such a
  // matrix serves products with these very heads, and its rows outside them are gone.
  Matrix packed(ThreadPool& pool, const PanelTarget& target, const HeadRows& heads, PanelRows rows,
                std::shared_ptr<PanelFile> file = nullptr) const {
    Matrix copy = without_data();
    copy.panels_ = std::make_shared<const Panels>(pool, target, *this, heads, rows, std::move(file));
    return copy;
  }
  // Packed rows of this matrix's format, as a matrix of their own: each head's, one below the other.
  Matrix of_panels(std::shared_ptr<const Panels> panels) const;
  // Format and shape alone.
  Matrix without_data() const {
    Matrix copy = *this;
    copy.data_ = nullptr;
    return copy;
  }

  // Null for a matrix that is seen where it lies. The methods below are for those alone.
  const Panels* panels() const { return panels_.get(); }

  int64_t row_bytes() const { return row_bytes_; }
  const uint8_t* row_data(int64_t row) const { return data_ + row * row_bytes_; }
  // From a column on that begins a block of the format.
  const uint8_t* piece_data(int64_t row, int64_t col) const {
    return row_data(row) + col / format_->block_weights * format_->block_bytes;
  }

  // The whole row, [cols].
  void dequantize_row(int64_t row, float* out) const { format_->dequantize_row(row_data(row), cols_, out); }

  // Columns col_begin…col_end of a row; both are multiples of the format's block, or the row's end.
  void dequantize_slice(int64_t row, int64_t col_begin, int64_t col_end, float* out) const {
    format_->dequantize_row(piece_data(row, col_begin), col_end - col_begin, out);
  }

 private:
  const uint8_t* data_;
  const FormatTraits* format_;
  int64_t rows_;
  int64_t cols_;
  int64_t row_bytes_;
  std::vector<float> scales_;
  std::shared_ptr<const Panels> panels_;
};

}  // namespace ballast
