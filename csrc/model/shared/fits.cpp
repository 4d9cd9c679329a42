#include "model/shared/fits.h"

namespace ballast {
namespace {

void check_packed(const std::string& name, const Matrix& matrix, const HeadRows& heads, bool transposed) {
  require(matrix.num_scales() <= 1, name + " has " + std::to_string(matrix.num_scales()) +
                                        " scales; expected one at most: more are for experts");
  const Panels* panels = matrix.panels();
  if (panels == nullptr) return;
  require(panels->heads() == heads && (panels->panel_rows() == PanelRows::kTransposed) == transposed,
          name + " is packed for other rows than it is used for; expected " +
              std::to_string(heads.num_heads) + " heads of " + std::to_string(heads.num_rows) + " rows" +
              (transposed ? ", transposed" : ""));
}

}  // namespace

std::string pair(int64_t rows, int64_t cols) {
  return "[" + std::to_string(rows) + ", " + std::to_string(cols) + "]";
}

void check_matrix(const std::string& name, const Matrix& matrix, int64_t rows, int64_t cols) {
  require(matrix.rows() == rows && matrix.cols() == cols,
          name + " is " + pair(matrix.rows(), matrix.cols()) + "; expected " + pair(rows, cols));
  check_packed(name, matrix, {1, 0, 0, rows}, false);
}

void check_heads(const std::string& name, const HeadMatrix& heads, int64_t num_heads, int64_t rows,
                 int64_t cols) {
  const HeadRows used = heads.heads(num_heads, rows);
  require(heads.head_stride >= 0 && heads.row_offset >= 0 && heads.matrix.cols() == cols &&
              used.begin(num_heads - 1) + rows <= heads.matrix.rows(),
          name + " is " + pair(heads.matrix.rows(), heads.matrix.cols()) + " with head_stride " +
              std::to_string(heads.head_stride) + " and row_offset " + std::to_string(heads.row_offset) +
              "; expected " + std::to_string(num_heads) + " heads of " + pair(rows, cols) + " to lie within");
  check_packed(name, heads.matrix, used, heads.transposed);
}

void check_vector(const std::string& name, const std::vector<float>& vector, int64_t size) {
  require(static_cast<int64_t>(vector.size()) == size,
          name + " has " + std::to_string(vector.size()) + " entries; expected " + std::to_string(size));
}

}  // namespace ballast
