#include "quant/matrix.h"

#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace ballast {

Matrix::Matrix(const void* data, int64_t num_bytes, int ggml_type, int64_t rows, int64_t cols,
               std::vector<float> scales)
    : data_(static_cast<const uint8_t*>(data)),
      format_(find_format(ggml_type)),
      rows_(rows),
      cols_(cols),
      scales_(std::move(scales)) {
  if (format_ == nullptr) {
    std::string known;
    for (const FormatTraits& format : all_formats()) {
      known += (known.empty() ? "" : ", ") + std::to_string(format.ggml_type) + " (" + format.name + ")";
    }
    throw std::invalid_argument("ggml_type is " + std::to_string(ggml_type) + "; supported are " + known);
  }
  const std::string shape = std::string(format_->name) + " matrix of " + std::to_string(rows) + " rows and " +
                            std::to_string(cols) + " cols";
  if (rows < 0 || cols < 1)
    throw std::invalid_argument(shape + ": rows must be 0 or more and cols 1 or more");
  if (cols % format_->block_weights != 0) {
    throw std::invalid_argument(shape + ": cols must be a multiple of the block, " +
                                std::to_string(format_->block_weights) + " weights");
  }
  if (num_scales() > 0 && rows % num_scales() != 0) {
    throw std::invalid_argument(shape + ": " + std::to_string(num_scales()) +
                                " scales; expected as many as divide its rows");
  }
  const int64_t row_blocks = cols / format_->block_weights;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  if (row_blocks > kMost / format_->block_bytes ||
      (rows > 0 && row_blocks * format_->block_bytes > kMost / rows)) {
    throw std::invalid_argument(shape + ": its size in bytes is beyond 64 bits");
  }
  row_bytes_ = row_blocks * format_->block_bytes;
  if (num_bytes != rows * row_bytes_) {
    throw std::invalid_argument(shape + ": data has " + std::to_string(num_bytes) + " bytes, expected " +
                                std::to_string(rows * row_bytes_));
  }
}

Matrix Matrix::of_panels(std::shared_ptr<const Panels> panels) const {
  Matrix rows = without_data();
  rows.rows_ = panels->heads().num_heads * panels->head_rows();
  rows.cols_ = panels->cols();
  rows.row_bytes_ = rows.cols_ / format_->block_weights * format_->block_bytes;
  rows.panels_ = std::move(panels);
  return rows;
}

}  // namespace ballast
