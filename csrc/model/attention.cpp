#include "model/attention.h"

#include "model/fits.h"

namespace ballast {
namespace {

void check_sparse(const std::string& name, const LatentAttention& weights, int64_t hidden) {
  const IndexerShape& shape = weights.sparse->shape;
  require(shape.num_heads > 0 && shape.top_k > 0, name + " chooses " + std::to_string(shape.top_k) +
                                                      " positions by " + std::to_string(shape.num_heads) +
                                                      " heads; expected at least 1 of each");
  require(shape.key_width >= weights.shape.rope_dim,
          name + " has index keys of " + std::to_string(shape.key_width) + "; expected at least " +
              std::to_string(weights.shape.rope_dim) + " entries, which are rotated");
  require(weights.query_down.has_value(), name + " has an indexer, but no query_down, which it reads");
  if (!weights.sparse->indexer) return;
  const Indexer& indexer = *weights.sparse->indexer;
  const std::string prefix = name + ".indexer";
  check_matrix(prefix + ".query_up", indexer.query_up, shape.num_heads * shape.key_width,
               weights.query_down->matrix.rows());
  check_matrix(prefix + ".key", indexer.key, shape.key_width, hidden);
  check_vector(prefix + ".key_norm", indexer.key_norm, shape.key_width);
  check_vector(prefix + ".key_shift", indexer.key_shift, shape.key_width);
  check_matrix(prefix + ".head_weights", indexer.head_weights, shape.num_heads, hidden);
}

void check_latent(const std::string& name, const LatentAttention& weights, int64_t hidden) {
  const LatentShape& shape = weights.shape;
  const int64_t rank = shape.kv_lora_rank;
  int64_t query_width = hidden;
  if (weights.query_down) {
    query_width = weights.query_down->matrix.rows();
    check_matrix(name + ".query_down", weights.query_down->matrix, query_width, hidden);
    check_vector(name + ".query_norm", weights.query_down->norm, query_width);
  }
  check_matrix(name + ".query_up", weights.query_up, shape.num_heads * shape.query_dim(), query_width);
  check_matrix(name + ".kv_a", weights.kv_a, shape.latent_dim(), hidden);
  check_vector(name + ".kv_a_norm", weights.kv_a_norm, rank);
  if (weights.k_up.transposed) {
    check_heads(name + ".k_up", weights.k_up, shape.num_heads, shape.nope_dim, rank);
  } else {
    check_heads(name + ".k_up", weights.k_up, shape.num_heads, rank, shape.nope_dim);
  }
  require(!weights.v_up.transposed, name + ".v_up is transposed; expected it as it is applied");
  check_heads(name + ".v_up", weights.v_up, shape.num_heads, shape.v_dim, rank);
  check_matrix(name + ".output", weights.output, hidden, shape.num_heads * shape.v_dim);
  if (weights.sparse) check_sparse(name, weights, hidden);
}

void check_optional(const std::string& name, const std::vector<float>& vector, int64_t size) {
  if (!vector.empty()) check_vector(name, vector, size);
}

void check_grouped(const std::string& name, const GroupedAttention& weights, int64_t hidden) {
  const GroupedShape& shape = weights.shape;
  require(shape.num_kv_heads > 0 && shape.num_heads % shape.num_kv_heads == 0,
          name + " has " + std::to_string(shape.num_heads) + " heads for " +
              std::to_string(shape.num_kv_heads) + " of the cache; expected equal groups");
  require(shape.rope_dim <= shape.head_dim, name + " rotates " + std::to_string(shape.rope_dim) +
                                                " entries of heads of " + std::to_string(shape.head_dim));
  const int64_t query_width = shape.num_heads * shape.head_dim;
  const int64_t key_width = shape.num_kv_heads * shape.head_dim;
  const int64_t value_width = shape.num_kv_heads * shape.v_dim;
  check_matrix(name + ".query", weights.query, query_width, hidden);
  check_matrix(name + ".key", weights.key, key_width, hidden);
  check_matrix(name + ".value", weights.value, value_width, hidden);
  check_optional(name + ".query_bias", weights.query_bias, query_width);
  check_optional(name + ".key_bias", weights.key_bias, key_width);
  check_optional(name + ".value_bias", weights.value_bias, value_width);
  check_optional(name + ".query_norm", weights.query_norm, shape.head_dim);
  check_optional(name + ".key_norm", weights.key_norm, shape.head_dim);
  check_matrix(name + ".output", weights.output, hidden, shape.num_heads * shape.v_dim);
}

}  // namespace

std::vector<int64_t> plane_widths(const Attention& attention) {
  if (const auto* latent = std::get_if<LatentAttention>(&attention)) {
    std::vector<int64_t> widths{latent->shape.latent_dim()};
    if (latent->sparse && latent->sparse->indexer) widths.push_back(latent->sparse->shape.key_width);
    return widths;
  }
  const GroupedShape& shape = std::get<GroupedAttention>(attention).shape;
  return {shape.num_kv_heads * shape.head_dim, shape.num_kv_heads * shape.v_dim};
}

int64_t rope_dim(const Attention& attention) {
  return std::visit([](const auto& kind) { return kind.shape.rope_dim; }, attention);
}

void check(const std::string& name, const Attention& attention, int64_t hidden) {
  if (const auto* latent = std::get_if<LatentAttention>(&attention)) {
    check_latent(name, *latent, hidden);
  } else {
    check_grouped(name, std::get<GroupedAttention>(attention), hidden);
  }
}

void attend(const Attention& attention, const AttentionCall& call, const float* normed,
            const LayerPlanes& planes, float* out) {
  std::visit([&](const auto& kind) { attend(kind, call, normed, planes, out); }, attention);
}

}  // namespace ballast
