#include "model/weights.h"

#include <variant>

#include "model/shared/fits.h"

namespace ballast {
namespace {

// None in a model with a plain residual stream.
std::optional<HyperConnection> make_connection(const std::string& block, const ModelShape& shape,
                                               LayerTensors& tensors) {
  if (shape.stream.num_rows == 1 || shape.stream.rank > 0) return std::nullopt;
  const int64_t num_weights = shape.stream.num_weights();
  return HyperConnection{
      tensors.vector(block + "_stream_products", num_weights * shape.stream.num_rows * shape.hidden),
      tensors.vector(block + "_stream_base", num_weights), tensors.vector(block + "_stream_scales", 3)};
}

// The weights by which the rows of the stream become one at the end; none: their mean is taken.
std::optional<HyperConnection> make_end(const ModelShape& shape, LayerTensors& tensors) {
  const int64_t num_rows = shape.stream.num_rows;
  if (num_rows == 1 || shape.stream.rank > 0 || !tensors.has("stream_end_products")) return std::nullopt;
  return HyperConnection{tensors.vector("stream_end_products", num_rows * num_rows * shape.hidden),
                         tensors.vector("stream_end_base", num_rows), tensors.vector("stream_end_scales", 1)};
}

// nullopt unless the rows of the stream are gated.
std::optional<StreamGates> make_gates(const std::string& block, const ModelShape& shape, bool injects,
                                      LayerTensors& tensors) {
  const StreamShape& stream = shape.stream;
  if (stream.rank == 0) return std::nullopt;
  return make_stream_gates(block, stream.num_rows, stream.rank, shape.hidden, injects, tensors);
}

// Empty in a stream of gated rows, whose gates have a norm of their own.
std::vector<float> make_norm(const std::string& role, const ModelShape& shape, LayerTensors& tensors) {
  return shape.stream.rank > 0 ? std::vector<float>() : tensors.vector(role, shape.hidden);
}

BlockInput make_input(const std::string& block, const ModelShape& shape, LayerTensors& tensors) {
  return {make_norm(block + "_norm", shape, tensors), make_connection(block, shape, tensors),
          make_gates(block, shape, true, tensors)};
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
      make_input("attention", shape, tensors),
      std::visit([&](const auto& mixer) { return make_attention(mixer, shape.hidden, tensors); },
                 input.mixer),
      input.rope,
      make_input("ffn", shape, tensors),
      std::nullopt,
      tensors.optional_vector("mlp_gate", shape.hidden),
      std::nullopt,
      std::nullopt};
  if (input.ngram) {
    require(shape.stream.rank > 0, name + " embeds n-grams; expected a stream of gated rows");
    layer.ngram.emplace(*input.ngram, shape.stream.num_rows, shape.hidden, tensors);
  }
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

std::vector<int64_t> LayerWeights::state_floats() const {
  std::vector<int64_t> floats = attention->state_floats();
  if (ngram) floats.push_back(ngram->state_floats());
  return floats;
}

ModelWeights::ModelWeights(const ModelInput& input, const ModelShape& shape)
    : embedding(input.embedding), output(input.output) {
  require(embedding.panels() == nullptr, "embedding is packed; expected the blocks of the file");
  require(embedding.cols() == shape.hidden, "embedding is " + pair(embedding.rows(), embedding.cols()) +
                                                "; expected hidden = " + std::to_string(shape.hidden) +
                                                " columns");
  for (size_t i = 0; i < input.layers.size(); ++i) {
    const std::string name = "layers[" + std::to_string(i) + "]";
    layers.push_back(make_layer(name, input.layers[i], shape, embedding.rows()));
  }
  check_choices(layers);
  LayerTensors tensors("output", input.output_tensors);
  output_norm = make_norm("output_norm", shape, tensors);
  output_gates = make_gates("output", shape, false, tensors);
  stream_end = make_end(shape, tensors);
  tensors.check_all_used();
  check_matrix("output", output, output.rows(), shape.hidden);
}

}  // namespace ballast
