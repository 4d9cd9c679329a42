// A row-major matrix in one of GGUF's formats, seen where it lies.
#pragma once

#include <cstdint>

#include "quant/formats.h"

namespace ballast {

class Matrix {
 public:
  // Borrows `data`, `num_bytes` long, at any address. Throws std::invalid_argument when the type is unknown,
  // `cols` is no multiple of its block, or the byte count is not that of rows * cols weights.
  Matrix(const void* data, int64_t num_bytes, int ggml_type, int64_t rows, int64_t cols);

  const FormatTraits& format() const { return *format_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t num_bytes() const { return rows_ * row_bytes_; }

  // The whole row, [cols].
  void dequantize_row(int64_t row, float* out) const { format_->dequantize_row(row_data(row), cols_, out); }

  // Columns col_begin…col_end of a row; both are multiples of the format's block, or the row's end.
  void dequantize_piece(int64_t row, int64_t col_begin, int64_t col_end, float* out) const {
    const uint8_t* begin = row_data(row) + col_begin / format_->block_weights * format_->block_bytes;
    format_->dequantize_row(begin, col_end - col_begin, out);
  }

 private:
  const uint8_t* row_data(int64_t row) const { return data_ + row * row_bytes_; }

  const uint8_t* data_;
  const FormatTraits* format_;
  int64_t rows_;
  int64_t cols_;
  int64_t row_bytes_;
};

}  // namespace ballast
