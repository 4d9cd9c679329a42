#include "model/weights.h"

#include <variant>

#include "model/fits.h"

namespace ballast {
namespace {

// None in a model with a plain residual stream.
std::optional<HyperConnection> make_connection(const std::string& block, const ModelShape& shape,
                                               LayerTensors& tensors) {
  if (shape.stream.num_rows == 1) return std::nullopt;
  const int64_t num_weights = shape.stream.num_weights();
  return HyperConnection{
      tensors.vector(block + "_stream_products", num_weights * shape.stream.num_rows * shape.hidden),
      tensors.vector(block + "_stream_base", num_weights), tensors.vector(block + "_stream_scales", 3)};
}

LayerWeights make_layer(const std::string& name, const LayerInput& input, const ModelShape& shape) {
  LayerTensors tensors(name, input.tensors);
  LayerWeights layer{
      tensors.vector("attention_norm", shape.hidden),
      std::visit([&](const auto& mixer) { return make_attention(mixer, shape.hidden, tensors); },
                 input.mixer),
      input.rope,
      tensors.vector("ffn_norm", shape.hidden),
      std::nullopt,
      tensors.optional_vector("mlp_gate", shape.hidden),
      std::nullopt,
      make_connection("attention", shape, tensors),
      make_connection("ffn", shape, tensors)};
  if (tensors.has("mlp")) layer.mlp = tensors.experts("mlp", 1, shape.hidden);
  if (tensors.has("experts")) {
    const int64_t num_experts = shape.routing.num_experts;
    layer.routed = RoutedWeights{tensors.matrix("router", num_experts, shape.hidden),
                                 tensors.optional_vector("router_bias", num_experts),
                                 tensors.optional_vector("router_logit_bias", num_experts),
                                 tensors.experts("experts", num_experts, shape.hidden)};
  }
  tensors.check_all_used();
  return layer;
}

// A layer without an indexer needs one below it, with the same number of positions.
void check_choices(const std::vector<LayerWeights>& layers) {
  const IndexerShape* last = nullptr;
  for (size_t i = 0; i < layers.size(); ++i) {
    const IndexerShape* index = layers[i].attention->index();
    if (index == nullptr) continue;
    if (layers[i].attention->has_indexer()) {
      last = index;
      continue;
    }
    const std::string name = "layers[" + std::to_string(i) + "]";
    require(last != nullptr, name + " has no indexer; expected one in it or in a layer below");
    require(last->most_chosen() == index->most_chosen(),
            name + " attends to " + std::to_string(index->most_chosen()) + " positions; expected " +
                std::to_string(last->most_chosen()) + ", which the indexer below chooses");
  }
}

}  // namespace

ModelWeights::ModelWeights(const ModelInput& input, const ModelShape& shape)
    : embedding(input.embedding), output_norm(input.output_norm), output(input.output) {
  require(embedding.panels() == nullptr, "embedding is packed; expected the blocks of the file");
  require(embedding.cols() == shape.hidden, "embedding is " + pair(embedding.rows(), embedding.cols()) +
                                                "; expected hidden = " + std::to_string(shape.hidden) +
                                                " columns");
  for (size_t i = 0; i < input.layers.size(); ++i) {
    layers.push_back(make_layer("layers[" + std::to_string(i) + "]", input.layers[i], shape));
  }
  check_choices(layers);
  check_vector("output_norm", output_norm, shape.hidden);
  check_matrix("output", output, output.rows(), shape.hidden);
}

}  // namespace ballast
