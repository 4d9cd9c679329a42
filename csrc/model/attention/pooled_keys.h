// An indexer's keys where neighbouring tokens share one (GLM-5.3-Flash, Qwen3.8-Flash-Next): the cache keeps
// a key per pool, and the state of a sequence what its last, incomplete pool consists of.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "model/attention/attention.h"
#include "model/shared/layer_tensors.h"
#include "ops/attention/position_choice.h"

namespace ballast {

// Pools are counted from the first position. A pool's key is the mean of its tokens' keys, each entry
// weighted by the softmax of the tokens' gates for it unless the shape says otherwise. The pool's rows in the
// plane, one of key_width / pool floats a token, lie side by side and hold this key.
class PooledKeys {
 public:
  PooledKeys(const IndexerShape& shape, int64_t hidden, LayerTensors& tensors);

  // Floats of a sequence's state: keys and gates of all tokens of a pool but the last.
  static int64_t state_floats(const IndexerShape& shape) { return (shape.pool - 1) * token_floats(shape); }

  // Writes the keys of the pools that the step completes into the plane, each after finish(first position,
  // key), and the states; keys [T, key_width].
  using Finish = std::function<void(int64_t, float*)>;
  void write(const AttentionCall& call, const float* normed, const float* keys, const CachePlane& plane,
             float* states, const Finish& finish = {}) const;

 private:
  struct Step;

  // Of a token in a state.
  static int64_t token_floats(const IndexerShape& shape) {
    return shape.averages ? shape.key_width : 2 * shape.key_width;
  }
  void write_mean(const Step& step, int64_t row, int64_t last, float* key) const;
  void write_weighted(const Step& step, int64_t row, int64_t last, float* key) const;
  void leave_states(const Step& step, int64_t row) const;

  const IndexerShape shape_;
  std::optional<Matrix> gate_;  // [key_width, D]
  std::vector<float> offset_;   // [pool, key_width], is added to the gates
};

// Writes the pools of the highest scores, among the complete ones that a token sees, into the memory:
// chosen_pools [T, top_k], num_chosen and last_pools. A key [key_width] is stored in the rows of its pool's
// tokens.
void choose_complete_pools(const AttentionCall& call, const IndexShape& shape, int64_t pool,
                           const CachePlane& keys);

// Writes the positions that each token attends to into the memory: those of the top_k / pool pools of the
// highest scores, among the complete pools that it sees, and all positions after the last of these.
void choose_pools(const AttentionCall& call, const IndexerShape& shape, const CachePlane& keys);

}  // namespace ballast
