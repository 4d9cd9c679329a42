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

// The experts of each token's id, which come as floats; none if the router chooses.
std::vector<int32_t> make_table(const RoutingRule& rule, int64_t vocabulary, LayerTensors& tensors) {
  if (!tensors.has("expert_table")) return {};
  std::vector<int32_t> table;
  for (const float expert : tensors.vector("expert_table", vocabulary * rule.num_chosen)) {
    require(expert >= 0.0f && expert < static_cast<float>(rule.num_experts),
            tensors.layer() + ".expert_table has " + std::to_string(expert) + "; expected 0 to " +
                std::to_string(rule.num_experts - 1));
    table.push_back(static_cast<int32_t>(expert));
  }
  return table;
}

LayerWeights make_layer(const std::string& name, const LayerInput& input, const ModelShape& shape,
                        int64_t vocabulary) {
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
                                 tensors.experts("experts", num_experts, shape.hidden),
                                 make_table(shape.routing, vocabulary, tensors)};
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
    : embedding(input.embedding),
      output_norm(input.output_norm),
      output(input.output),
      stream_end(input.stream_end) {
  require(embedding.panels() == nullptr, "embedding is packed; expected the blocks of the file");
  require(embedding.cols() == shape.hidden, "embedding is " + pair(embedding.rows(), embedding.cols()) +
                                                "; expected hidden = " + std::to_string(shape.hidden) +
                                                " columns");
  for (size_t i = 0; i < input.layers.size(); ++i) {
    const std::string name = "layers[" + std::to_string(i) + "]";
    layers.push_back(make_layer(name, input.layers[i], shape, embedding.rows()));
  }
  if (stream_end) {
    const int64_t num_rows = shape.stream.num_rows;
    check_vector("stream_end products", stream_end->products, num_rows * num_rows * shape.hidden);
    check_vector("stream_end base", stream_end->base, num_rows);
    check_vector("stream_end scales", stream_end->scales, 1);
  }
  check_choices(layers);
  check_vector("output_norm", output_norm, shape.hidden);
  check_matrix("output", output, output.rows(), shape.hidden);
}

}  // namespace ballast
