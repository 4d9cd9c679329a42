#include "model/shared/layer_tensors.h"

#include "model/shared/fits.h"

namespace ballast {

template <class Kind>
const Kind& LayerTensors::find(const std::string& role, const char* kind) {
  const auto found = tensors_.find(role);
  require(found != tensors_.end(), layer_ + " has no " + role + "; expected " + kind);
  used_.insert(role);
  const Kind* tensor = std::get_if<Kind>(&found->second);
  require(tensor != nullptr, name(role) + " is of another kind; expected " + kind);
  return *tensor;
}

Matrix LayerTensors::matrix(const std::string& role, int64_t rows, int64_t cols) {
  const Matrix& found = find<Matrix>(role, "a matrix");
  check_matrix(name(role), found, rows, cols);
  return found;
}

Matrix LayerTensors::matrix_of_width(const std::string& role, int64_t cols) {
  return matrix(role, find<Matrix>(role, "a matrix").rows(), cols);
}

Matrix LayerTensors::matrix_of_rows(const std::string& role, int64_t rows) {
  return matrix(role, rows, find<Matrix>(role, "a matrix").cols());
}

HeadMatrix LayerTensors::heads(const std::string& role, int64_t num_heads, int64_t rows, int64_t cols) {
  const HeadMatrix& found = find<HeadMatrix>(role, "one matrix per head");
  require(!found.transposed, name(role) + " is transposed; expected it as it is applied");
  check_heads(name(role), found, num_heads, rows, cols);
  return found;
}

HeadMatrix LayerTensors::heads_either_way(const std::string& role, int64_t num_heads, int64_t rows,
                                          int64_t cols) {
  const HeadMatrix& found = find<HeadMatrix>(role, "one matrix per head");
  if (!found.transposed) return heads(role, num_heads, rows, cols);
  check_heads(name(role), found, num_heads, cols, rows);
  return found;
}

std::vector<float> LayerTensors::vector(const std::string& role, int64_t size) {
  const auto& found = find<std::vector<float>>(role, "a vector");
  check_vector(name(role), found, size);
  return found;
}

std::vector<float> LayerTensors::optional_vector(const std::string& role, int64_t size) {
  return has(role) ? vector(role, size) : std::vector<float>();
}

Experts LayerTensors::experts(const std::string& role, int64_t num_experts, int64_t hidden) {
  const Experts& found = find<Experts>(role, "experts");
  require(found.num_experts() == num_experts && found.hidden_width() == hidden,
          name(role) + " has " + std::to_string(found.num_experts()) + " experts of width " +
              std::to_string(found.hidden_width()) + "; expected " + std::to_string(num_experts) +
              " of width " + std::to_string(hidden));
  return found;
}

void LayerTensors::check_all_used() const {
  for (const auto& [role, tensor] : tensors_) {
    require(used_.count(role) != 0, name(role) + " is not used by this layer; expected no such tensor");
  }
}

}  // namespace ballast
