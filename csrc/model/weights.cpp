#include "model/weights.h"

#include <string>
#include <variant>

#include "model/fits.h"

namespace ballast {
namespace {

void check_experts(const std::string& name, const Experts& experts, int64_t num_experts, int64_t hidden) {
  require(experts.num_experts() == num_experts && experts.hidden_width() == hidden,
          name + " has " + std::to_string(experts.num_experts()) + " experts of width " +
              std::to_string(experts.hidden_width()) + "; expected " + std::to_string(num_experts) +
              " of width " + std::to_string(hidden));
}

// A layer without an indexer takes the choice of one below.
void check_choices(const std::vector<LayerWeights>& layers) {
  const SparseChoice* last = nullptr;
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto* latent = std::get_if<LatentAttention>(&layers[i].attention);
    if (latent == nullptr || !latent->sparse) continue;
    const std::string name = "layers[" + std::to_string(i) + "].attention";
    if (latent->sparse->indexer) {
      last = &*latent->sparse;
      continue;
    }
    require(last != nullptr, name + " has no indexer; expected one in it or in a layer below");
    require(last->shape.top_k == latent->sparse->shape.top_k,
            name + " attends to " + std::to_string(latent->sparse->shape.top_k) + " positions; expected " +
                std::to_string(last->shape.top_k) + ", which the indexer below chooses");
  }
}

}  // namespace

void ModelWeights::check(const ModelShape& shape) const {
  require(embedding.panels() == nullptr, "embedding is packed; expected it as it lies in the file");
  require(embedding.cols() == shape.hidden, "embedding is " + pair(embedding.rows(), embedding.cols()) +
                                                "; expected hidden = " + std::to_string(shape.hidden) +
                                                " columns");
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string name = "layers[" + std::to_string(i) + "]";
    const LayerWeights& layer = layers[i];
    check_vector(name + ".attention_norm", layer.attention_norm, shape.hidden);
    ballast::check(name + ".attention", layer.attention, shape.hidden);
    require(rope_dim(layer.attention) == shape.rope_dim,
            name + ".attention rotates " + std::to_string(rope_dim(layer.attention)) + " entries; expected " +
                std::to_string(shape.rope_dim));
    check_vector(name + ".ffn_norm", layer.ffn_norm, shape.hidden);
    if (layer.every_token) check_experts(name + ".mlp", *layer.every_token, 1, shape.hidden);
    if (!layer.routed) continue;
    const int64_t num_experts = shape.routing.num_experts;
    check_matrix(name + ".router", layer.routed->router, num_experts, shape.hidden);
    if (!layer.routed->bias.empty()) check_vector(name + ".bias", layer.routed->bias, num_experts);
    check_experts(name + ".experts", layer.routed->experts, num_experts, shape.hidden);
  }
  check_choices(layers);
  check_vector("output_norm", output_norm, shape.hidden);
  check_matrix("output", output, output.rows(), shape.hidden);
}

}  // namespace ballast
