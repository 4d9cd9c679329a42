// The weights of a DeepSeek-family model as its layers use them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "moe/experts.h"
#include "moe/router.h"
#include "quant/matrix.h"

namespace ballast {

struct DeepseekShape {
  int64_t hidden;
  int64_t num_heads;
  int64_t kv_lora_rank;
  int64_t nope_dim;
  int64_t rope_dim;
  int64_t v_dim;
  float rms_eps;
  float softmax_scale;
  RoutingRule routing;  // of the layers that have routed experts

  int64_t latent_dim() const { return kv_lora_rank + rope_dim; }
  int64_t query_dim() const { return nope_dim + rope_dim; }  // of one head
};

// One matrix a head inside a larger one: head h owns rows from h * head_stride + row_offset on.
struct HeadMatrix {
  Matrix matrix;
  int64_t head_stride;
  int64_t row_offset;
  bool transposed;  // whether it is applied so

  HeadRows heads(int64_t num_heads, int64_t num_rows) const {
    return {num_heads, head_stride, row_offset, num_rows};
  }
};

// Queries go through a low rank in V2 and V3, and straight in V2-Lite.
struct QueryDown {
  Matrix matrix;            // [q_lora_rank, D]
  std::vector<float> norm;  // [q_lora_rank]
};

struct AttentionWeights {
  std::vector<float> norm;  // [D]
  std::optional<QueryDown> query_down;
  Matrix query_up;               // [H * (nope + rope), q_lora_rank or D]
  Matrix kv_a;                   // [kv_lora_rank + rope, D]
  std::vector<float> kv_a_norm;  // [kv_lora_rank]
  HeadMatrix k_up;               // W_UK, a head: [kv_lora_rank, nope], or transposed
  HeadMatrix v_up;               // W_UV, a head: [v, kv_lora_rank]
  Matrix output;                 // [D, H * v]
};

struct RoutedWeights {
  Matrix router;            // [E, D]
  std::vector<float> bias;  // [E], for the choice only; empty for none
  Experts experts;
};

struct LayerWeights {
  AttentionWeights attention;
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
  void check(const DeepseekShape& shape) const;
};

}  // namespace ballast
