// The tensors of a layer by role. The declarations in runtime/ballast/model/layers define the roles.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "moe/experts.h"
#include "quant/matrix.h"

namespace ballast {

// One matrix per head inside a larger one: head h owns the rows from h * head_stride + row_offset.
struct HeadMatrix {
  Matrix matrix;
  int64_t head_stride;
  int64_t row_offset;
  bool transposed;  // whether it is applied transposed

  HeadRows heads(int64_t num_heads, int64_t num_rows) const {
    return {num_heads, head_stride, row_offset, num_rows};
  }
};

using LayerTensor = std::variant<std::vector<float>, Matrix, HeadMatrix, Experts>;
using TensorsByRole = std::map<std::string, LayerTensor>;

// Returns tensors of the requested shape. All functions throw std::invalid_argument, with layer and role, for
// a tensor that is missing, of another kind, or of another shape.
class LayerTensors {
 public:
  LayerTensors(std::string layer, const TensorsByRole& tensors)
      : layer_(std::move(layer)), tensors_(tensors) {}

  const std::string& layer() const { return layer_; }
  bool has(const std::string& role) const { return tensors_.count(role) != 0; }

  Matrix matrix(const std::string& role, int64_t rows, int64_t cols);
  // The tensor defines its shape.
  Matrix any_matrix(const std::string& role) { return find<Matrix>(role, "a matrix"); }
  // The tensor defines the number of rows, such as a rank.
  Matrix matrix_of_width(const std::string& role, int64_t cols);
  // The same for the number of columns.
  Matrix matrix_of_rows(const std::string& role, int64_t rows);
  HeadMatrix heads(const std::string& role, int64_t num_heads, int64_t rows, int64_t cols);
  // Like `heads`, but each matrix may also be [cols, rows] and applied transposed.
  HeadMatrix heads_either_way(const std::string& role, int64_t num_heads, int64_t rows, int64_t cols);
  std::vector<float> vector(const std::string& role, int64_t size);
  // Empty if the layer has no such tensor.
  std::vector<float> optional_vector(const std::string& role, int64_t size);
  Experts experts(const std::string& role, int64_t num_experts, int64_t hidden);

  // Throws std::invalid_argument, with layer and role, if a tensor was never requested.
  void check_all_used() const;

 private:
  template <class Kind>
  const Kind& find(const std::string& role, const char* kind);
  std::string name(const std::string& role) const { return layer_ + "." + role; }

  const std::string layer_;
  const TensorsByRole& tensors_;
  std::set<std::string> used_;
};

}  // namespace ballast
