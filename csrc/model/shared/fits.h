// Whether weights fit a model's shape. All throw std::invalid_argument naming the weight.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "model/shared/layer_tensors.h"
#include "quant/matrix.h"

namespace ballast {

std::string pair(int64_t rows, int64_t cols);
void check_matrix(const std::string& name, const Matrix& matrix, int64_t rows, int64_t cols);
void check_heads(const std::string& name, const HeadMatrix& heads, int64_t num_heads, int64_t rows,
                 int64_t cols);
void check_vector(const std::string& name, const std::vector<float>& vector, int64_t size);

}  // namespace ballast
