// The weights of a model as its layers use them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/attention/attention.h"
#include "model/shared/layer_tensors.h"
#include "model/stream/gated_stream.h"
#include "model/stream/ngram_embedding.h"
#include "model/stream/residual_stream.h"
#include "moe/experts.h"
#include "moe/router.h"
#include "quant/matrix.h"

namespace ballast {

struct ModelShape {
  int64_t hidden;
  float rms_eps;
  RoutingRule routing;  // of the layers that have routed experts
  StreamShape stream = {};
};

// The input of a layer: the sizes of its attention, and its tensors.
struct LayerInput {
  MixerShape mixer;
  TensorsByRole tensors;
  size_t rope = 0;  // the table by which positions rotate
  std::optional<NgramShape> ngram = {};
};

struct ModelInput {
  Matrix embedding;  // [vocabulary, D], seen in place
  std::vector<LayerInput> layers;
  TensorsByRole output_tensors;  // by which the output reads the residual stream
  Matrix output;                 // [sampled vocabulary, D]
};

struct RoutedWeights {
  Matrix router;                  // [E, D]
  std::vector<float> bias;        // [E], for the choice only; empty for none
  std::vector<float> logit_bias;  // [E], for choice and weights; empty for none
  Experts experts;
  std::vector<int32_t> table = {};  // [vocabulary, chosen] of a token's id; empty: the router chooses
};

// How a block, attention or feed-forward, reads the residual stream and adds to it.
struct BlockInput {
  std::vector<float> norm;                    // [D]; empty in a stream of gated rows
  std::optional<HyperConnection> connection;  // in a stream of rows that are mixed
  std::optional<StreamGates> gates;           // in a stream of gated rows
};

struct LayerWeights {
  BlockInput attention_input;
  std::shared_ptr<const Attention> attention;
  size_t rope;
  BlockInput ffn_input;
  // One expert: a dense feed-forward, or the shared expert of a layer with routed ones.
  std::optional<Experts> mlp;
  std::vector<float> mlp_gate;  // [D], whose product's sigmoid multiplies the expert's output; empty for none
  std::optional<RoutedWeights> routed;
  std::optional<NgramEmbedding> ngram = {};

  // Floats of each recurrent state of a sequence.
  std::vector<int64_t> state_floats() const;
};

struct ModelWeights {
  // Throws std::invalid_argument naming the first weight that does not fit the shape.
  ModelWeights(const ModelInput& input, const ModelShape& shape);

  Matrix embedding;
  std::vector<LayerWeights> layers;
  std::vector<float> output_norm;  // [D]; empty in a stream of gated rows
  Matrix output;
  std::optional<StreamGates> output_gates;
  // How the rows of the residual stream become one at the end; none: their mean.
  std::optional<HyperConnection> stream_end;
};

}  // namespace ballast
