// The weights of a model as its layers use them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/attention.h"
#include "moe/experts.h"
#include "moe/router.h"
#include "quant/matrix.h"

namespace ballast {

struct ModelShape {
  int64_t hidden;
  int64_t rope_dim;  // entries of a head that positions rotate
  float rms_eps;
  RoutingRule routing;  // of the layers that have routed experts
};

struct RoutedWeights {
  Matrix router;            // [E, D]
  std::vector<float> bias;  // [E], for the choice only; empty for none
  Experts experts;
};

struct LayerWeights {
  std::vector<float> attention_norm;  // [D]
  Attention attention;
  std::vector<float> ffn_norm;  // [D]
  // One expert: a dense feed-forward, or the one shared beside the routed ones.
  std::optional<Experts> every_token;
  std::optional<RoutedWeights> routed;
};

struct ModelWeights {
  Matrix embedding;  // [vocabulary, D], seen in place
  std::vector<LayerWeights> layers;
  std::vector<float> output_norm;  // [D]
  Matrix output;                   // [sampled vocabulary, D]

  // Throws std::invalid_argument naming the first weight that does not fit the shape.
  void check(const ModelShape& shape) const;
};

}  // namespace ballast
