// DeepSeek V2, V3, R1 and Kimi K2 on the CPU: one transformer, told apart by its shape and weights.
//
// Papers: DeepSeek-V2 (arXiv 2405.04434: latent attention, shared and routed experts), DeepSeek-V3 (arXiv
// 2412.19437: sigmoid routing with a selection bias). Attention runs absorbed: the cache holds one latent row
// per token, queries are carried into the latent space by W_UK and results out of it by W_UV.
//
// Shapes: T tokens, D hidden, H heads, L = kv_lora_rank + rope_dim.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cpu/kernels.h"
#include "model/weights.h"
#include "moe/routed.h"
#include "ops/mla_attention.h"
#include "threads/thread_pool.h"

namespace ballast {

// Cosine and sine of every position's angles, both [num_positions, rope_dim / 2].
struct RopeTable {
  const float* cos;
  const float* sin;
  int64_t num_positions;
};

// One latent row per slot and layer: the normed latent, then the rotated key.
struct KvCache {
  std::vector<float*> layers;  // each [num_slots, L]
  int64_t num_slots;
};

// One step's input.
struct Step {
  const int32_t* token_ids;  // [T]
  const int32_t* slots;      // [T], where each token's row goes
  PagedBatch batch;
  const int64_t* sampled;  // [num_sampled], the tokens whose logits are wanted
  int64_t num_sampled;

  int64_t num_tokens() const { return batch.num_tokens; }
};

class DeepseekModel {
 public:
  // Borrows pool, tables and cache; null kernels stand for the reference. Throws std::invalid_argument naming
  // the weight that does not fit.
  DeepseekModel(ThreadPool& pool, const Kernels* kernels, const DeepseekShape& shape, ModelWeights weights,
                const RopeTable& rope, const KvCache& cache);

  const DeepseekShape& shape() const { return shape_; }
  int64_t num_layers() const { return static_cast<int64_t>(weights_.layers.size()); }
  int64_t num_logits() const { return weights_.output.rows(); }
  int64_t num_slots() const { return cache_.num_slots; }
  // Bytes of routed experts' weights that all steps so far have read: of each layer, every expert once a step
  // that any token chose. May be asked for from any thread.
  int64_t expert_bytes_read() const { return routed_.bytes_read(); }

  // Writes the step's rows of the cache and logits [num_sampled, num_logits]; calls layer_done after each
  // layer. Throws std::out_of_range or std::invalid_argument naming the entry of the step that leads outside
  // vocabulary, table or cache; nothing is written then. One call at a time: calls share the memory between
  // two operations.
  void forward(const Step& step, float* logits, const std::function<void()>& layer_done);

 private:
  // Memory between two operations, as large as the largest step so far.
  struct StepMemory {
    void reserve(int64_t num_tokens, const DeepseekShape& shape, int64_t query_rank);

    std::vector<float> stream;         // [T, D], the residual stream
    std::vector<float> normed;         // [T, D]
    std::vector<float> query_down;     // [T, q_lora_rank]
    std::vector<float> query;          // [T, H, nope + rope]
    std::vector<float> query_nope;     // [T, H, nope]
    std::vector<float> query_latent;   // [T, H, kv_lora_rank]
    std::vector<float> latent;         // [T, L]
    std::vector<float> attended;       // [T, H, kv_lora_rank]
    std::vector<float> values;         // [T, H, v]
    std::vector<float> block_out;      // [T, D], of attention or the feed-forward of every token
    std::vector<float> routed_out;     // [T, D]
    std::vector<float> router_logits;  // [T, E]
    std::vector<int32_t> zeros;        // [T], every token's only expert
    std::vector<float> ones;           // [T], and its share
  };
  using Outputs = std::vector<const float*>;

  void check(const Step& step) const;
  void embed(const Step& step);
  void attention(const AttentionWeights& weights, float* cache, const Step& step);
  void queries(const AttentionWeights& weights, int64_t num_tokens);
  void rotate_and_store(const AttentionWeights& weights, float* cache, const Step& step);
  Outputs feed_forward(const LayerWeights& weights, int64_t num_tokens);
  Experts::Call choose(const RoutedWeights& weights, int64_t num_tokens);
  void output(const Outputs& pending, const Step& step, float* logits);

  void add_and_norm(const Outputs& added, const std::vector<float>& norm, int64_t num_tokens);
  template <class PerToken>
  void for_tokens(int64_t num_tokens, const PerToken& per_token) const;

  ThreadPool& pool_;
  const Kernels* const kernels_;
  const DeepseekShape shape_;
  const ModelWeights weights_;
  const RopeTable rope_;
  const KvCache cache_;
  StepMemory memory_;
  RoutedExperts routed_;
};

}  // namespace ballast
