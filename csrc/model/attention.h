// The kinds of attention: what a layer of each has for weights, what it keeps of a token, and how it
// computes.
//
// Shapes: T tokens, D hidden, H heads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cpu/kernels.h"
#include "model/step.h"
#include "quant/matrix.h"

namespace ballast {

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

struct LatentShape {
  int64_t num_heads;
  int64_t kv_lora_rank;
  int64_t nope_dim;
  int64_t rope_dim;
  int64_t v_dim;
  float softmax_scale;

  int64_t latent_dim() const { return kv_lora_rank + rope_dim; }
  int64_t query_dim() const { return nope_dim + rope_dim; }  // of one head
};

// Queries go through a low rank in V2 and V3, and straight in V2-Lite.
struct QueryDown {
  Matrix matrix;            // [q_lora_rank, D]
  std::vector<float> norm;  // [q_lora_rank]
};

struct IndexerShape {
  int64_t num_heads;
  int64_t key_width;
  int64_t top_k;     // positions that a token attends to, at most
  bool pairs_apart;  // whether pairs of the rotation are rope_dim / 2 apart, else neighbours
};

// The lightning indexer (DeepSeek-V3.2-Exp, §2.1): chooses what a token attends to. The first rope_dim
// entries of its queries and keys are rotated; a key is kept of each token.
struct Indexer {
  Matrix query_up;               // [index heads * key_width, q_lora_rank]
  Matrix key;                    // [key_width, D]
  std::vector<float> key_norm;   // [key_width], of a layer norm
  std::vector<float> key_shift;  // [key_width]
  Matrix head_weights;           // [index heads, D]
};

// That a token attends to chosen positions alone; without an indexer, to those of the nearest layer below
// that has one (GLM-5.2, arXiv 2603.12201).
struct SparseChoice {
  IndexerShape shape;
  std::optional<Indexer> indexer;
};

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), absorbed: the cache holds one row a token, the
// normed latent and then the rotated key; queries are carried into the latent space by W_UK and results out
// of it by W_UV. Pairs of the rotation are neighbours.
struct LatentAttention {
  LatentShape shape;
  std::optional<QueryDown> query_down;
  Matrix query_up;               // [H * (nope + rope), q_lora_rank or D]
  Matrix kv_a;                   // [kv_lora_rank + rope, D]
  std::vector<float> kv_a_norm;  // [kv_lora_rank]
  HeadMatrix k_up;               // W_UK, a head: [kv_lora_rank, nope], or transposed
  HeadMatrix v_up;               // W_UV, a head: [v, kv_lora_rank]
  Matrix output;                 // [D, H * v]
  std::optional<SparseChoice> sparse;
};

struct GroupedShape {
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;  // of queries and keys
  int64_t v_dim;     // of a head's value
  int64_t rope_dim;  // of a head, its first entries; the others are not rotated
  float softmax_scale;
};

// Grouped-query attention (arXiv 2305.13245): the cache holds rotated keys, and values, of num_kv_heads
// heads. Pairs of the rotation are rope_dim / 2 apart. Biases and norms are empty where a model has none.
struct GroupedAttention {
  GroupedShape shape;
  Matrix query;                   // [H * head_dim, D]
  Matrix key;                     // [num_kv_heads * head_dim, D]
  Matrix value;                   // [num_kv_heads * v, D]
  std::vector<float> query_bias;  // [H * head_dim]
  std::vector<float> key_bias;
  std::vector<float> value_bias;
  std::vector<float> query_norm;  // [head_dim], of each head before its rotation
  std::vector<float> key_norm;
  Matrix output;  // [D, H * v]
};

using Attention = std::variant<LatentAttention, GroupedAttention>;

// Memory between two operations, as large as the largest step so far.
struct AttentionMemory {
  std::vector<float> query_down;    // [T, q_lora_rank]
  std::vector<float> query;         // [T, H, nope + rope or head_dim]
  std::vector<float> query_nope;    // [T, H, nope]
  std::vector<float> query_latent;  // [T, H, kv_lora_rank]
  std::vector<float> latent;        // [T, kv_lora_rank + rope]
  std::vector<float> attended;      // [T, H, kv_lora_rank]
  std::vector<float> key;           // [T, kv heads, head_dim]
  std::vector<float> value;         // [T, kv heads, v]
  std::vector<float> values;        // [T, H, v]
  std::vector<float> index_query;   // [T, index heads, key_width]
  std::vector<float> index_key;     // [T, key_width]
  std::vector<float> head_weights;  // [T, index heads]
  // Of the nearest layer below that has an indexer.
  std::vector<int32_t> chosen;      // [T, top_k]
  std::vector<int32_t> num_chosen;  // [T]
};

// A layer's call; null kernels stand for the reference.
struct AttentionCall {
  ThreadPool& pool;
  const Kernels* kernels;
  const RopeTable& rope;
  float rms_eps;
  const Step& step;
  AttentionMemory& memory;
};

// Floats of a token that each plane of a layer's cache holds.
std::vector<int64_t> plane_widths(const Attention& attention);
int64_t rope_dim(const Attention& attention);

// Throws std::invalid_argument naming the first weight that does not fit.
void check(const std::string& name, const Attention& attention, int64_t hidden);

// Writes the step's rows of an indexer's keys, and what its tokens attend to into the memory. `normed` [T, D]
// is the layer's input, `query_down` [T, q_lora_rank] its normed low rank.
void choose(const Indexer& indexer, const IndexerShape& shape, int64_t rope_dim, const AttentionCall& call,
            const float* normed, const float* query_down, float* keys);

// Writes the step's rows of the planes; out [T, D] from normed [T, D].
void attend(const Attention& attention, const AttentionCall& call, const float* normed,
            const LayerPlanes& planes, float* out);
void attend(const LatentAttention& attention, const AttentionCall& call, const float* normed,
            const LayerPlanes& planes, float* out);
void attend(const GroupedAttention& attention, const AttentionCall& call, const float* normed,
            const LayerPlanes& planes, float* out);

}  // namespace ballast
