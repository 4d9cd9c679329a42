#include "model/weights.h"

#include <stdexcept>
#include <string>

namespace ballast {
namespace {

void require(bool holds, const std::string& story) {
  if (!holds) throw std::invalid_argument(story);
}

std::string pair(int64_t rows, int64_t cols) {
  return "[" + std::to_string(rows) + ", " + std::to_string(cols) + "]";
}

void check_packed(const std::string& name, const Matrix& matrix, const HeadRows& heads, bool transposed) {
  const Panels* panels = matrix.panels();
  if (panels == nullptr) return;
  require(panels->heads() == heads && (panels->panel_rows() == PanelRows::kTransposed) == transposed,
          name + " is packed for other rows than it is used for; expected " +
              std::to_string(heads.num_heads) + " heads of " + std::to_string(heads.num_rows) + " rows" +
              (transposed ? ", transposed" : ""));
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

void check_experts(const std::string& name, const Experts& experts, int64_t num_experts, int64_t hidden) {
  require(experts.num_experts() == num_experts && experts.hidden_width() == hidden,
          name + " has " + std::to_string(experts.num_experts()) + " experts of width " +
              std::to_string(experts.hidden_width()) + "; expected " + std::to_string(num_experts) +
              " of width " + std::to_string(hidden));
}

void check_attention(const std::string& name, const AttentionWeights& weights, const DeepseekShape& shape) {
  const int64_t rank = shape.kv_lora_rank;
  check_vector(name + ".norm", weights.norm, shape.hidden);
  int64_t query_width = shape.hidden;
  if (weights.query_down) {
    query_width = weights.query_down->matrix.rows();
    check_matrix(name + ".query_down", weights.query_down->matrix, query_width, shape.hidden);
    check_vector(name + ".query_norm", weights.query_down->norm, query_width);
  }
  check_matrix(name + ".query_up", weights.query_up, shape.num_heads * shape.query_dim(), query_width);
  check_matrix(name + ".kv_a", weights.kv_a, shape.latent_dim(), shape.hidden);
  check_vector(name + ".kv_a_norm", weights.kv_a_norm, rank);
  if (weights.k_up.transposed) {
    check_heads(name + ".k_up", weights.k_up, shape.num_heads, shape.nope_dim, rank);
  } else {
    check_heads(name + ".k_up", weights.k_up, shape.num_heads, rank, shape.nope_dim);
  }
  require(!weights.v_up.transposed, name + ".v_up is transposed; expected it as it is applied");
  check_heads(name + ".v_up", weights.v_up, shape.num_heads, shape.v_dim, rank);
  check_matrix(name + ".output", weights.output, shape.hidden, shape.num_heads * shape.v_dim);
}

}  // namespace

void ModelWeights::check(const DeepseekShape& shape) const {
  require(embedding.panels() == nullptr, "embedding is packed; expected it as it lies in the file");
  require(embedding.cols() == shape.hidden, "embedding is " + pair(embedding.rows(), embedding.cols()) +
                                                "; expected hidden = " + std::to_string(shape.hidden) +
                                                " columns");
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string name = "layers[" + std::to_string(i) + "]";
    const LayerWeights& layer = layers[i];
    check_attention(name + ".attention", layer.attention, shape);
    check_vector(name + ".ffn_norm", layer.ffn_norm, shape.hidden);
    if (layer.every_token) check_experts(name + ".mlp", *layer.every_token, 1, shape.hidden);
    if (!layer.routed) continue;
    const int64_t num_experts = shape.routing.num_experts;
    check_matrix(name + ".router", layer.routed->router, num_experts, shape.hidden);
    if (!layer.routed->bias.empty()) check_vector(name + ".bias", layer.routed->bias, num_experts);
    check_experts(name + ".experts", layer.routed->experts, num_experts, shape.hidden);
  }
  check_vector("output_norm", output_norm, shape.hidden);
  check_matrix("output", output, output.rows(), shape.hidden);
}

}  // namespace ballast
