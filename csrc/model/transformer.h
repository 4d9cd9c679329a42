// A mixture-of-experts transformer on the CPU: one loop over layers for every family of models. Families
// differ in their layers' attention and in the routing rule, which weights and shape define.
//
// Shapes: T tokens, D hidden.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "cpu/kernels.h"
#include "model/shared/step.h"
#include "model/weights.h"
#include "moe/routed.h"
#include "threads/thread_pool.h"

namespace ballast {

class Transformer {
 public:
  // Borrows pool, tables and cache; null kernels stand for the reference. Throws std::invalid_argument naming
  // the weight that does not fit.
  Transformer(ThreadPool& pool, const Kernels* kernels, const ModelShape& shape, ModelWeights weights,
              const std::vector<RopeTable>& ropes, const KvCache& cache);

  const ModelShape& shape() const { return shape_; }
  int64_t num_layers() const { return static_cast<int64_t>(weights_.layers.size()); }
  int64_t num_logits() const { return weights_.output.rows(); }
  int64_t num_slots() const { return cache_.num_slots; }
  int64_t num_window_slots() const { return cache_.num_window_slots; }
  // Bytes of routed experts' weights that all steps so far have read: per step and layer, each chosen expert
  // once. May be called from any thread.
  int64_t expert_bytes_read() const { return routed_.bytes_read(); }

  // Writes the step's rows and states of the cache and logits [num_sampled, num_logits]; calls layer_done
  // after each layer. Throws std::out_of_range or std::invalid_argument naming the entry of the step that
  // leads outside vocabulary, table or cache; nothing is written then. One call at a time: calls share the
  // memory between two operations.
  void forward(const Step& step, float* logits, const std::function<void()>& layer_done);

 private:
  // Buffers between operations, sized for the largest step so far.
  struct StepMemory {
    void reserve(int64_t num_tokens, const ModelShape& shape);

    std::vector<float> normed;         // [T, D]
    std::vector<float> block_out;      // [T, D], of attention or the feed-forward of every token
    std::vector<float> routed_out;     // [T, D]
    std::vector<float> router_logits;  // [T, E]
    std::vector<int32_t> zeros;        // [T], every token's only expert
    std::vector<float> shares;         // [T], and its share
  };
  using Outputs = std::vector<const float*>;

  void check(const Step& step) const;
  void check_states(const StateRows& states) const;
  void check_earlier(const Step& step) const;
  void embed(const Step& step);
  void next_block(const BlockInput& input, const Outputs& added);
  void check_cache() const;
  void check_ropes() const;
  Outputs feed_forward(const LayerWeights& weights, const Step& step);
  Experts::Call every_token(const LayerWeights& weights, int64_t num_tokens);
  Experts::Call choose(const RoutedWeights& weights, const Step& step);
  void output(const Outputs& pending, const Step& step, float* logits);

  ThreadPool& pool_;
  const Kernels* const kernels_;
  const ModelShape shape_;
  const ModelWeights weights_;
  const std::vector<RopeTable> ropes_;
  const KvCache cache_;
  StepMemory memory_;
  ResidualStream stream_;
  std::optional<GatedStream> gated_;  // takes its place
  AttentionMemory attention_memory_;
  RoutedExperts routed_;
};

}  // namespace ballast
