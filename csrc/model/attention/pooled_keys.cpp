#include "model/attention/pooled_keys.h"

#include <algorithm>
#include <cmath>

#include "model/shared/fits.h"
#include "ops/attention/position_choice.h"
#include "ops/linear.h"

namespace ballast {

PooledKeys::PooledKeys(const IndexerShape& shape, int64_t hidden, LayerTensors& tensors) : shape_(shape) {
  require(shape.key_width % shape.pool == 0 && shape.top_k % shape.pool == 0,
          tensors.layer() + " has pools of " + std::to_string(shape.pool) + " tokens with keys of " +
              std::to_string(shape.key_width) + ", and chooses " + std::to_string(shape.top_k) +
              " positions; expected multiples of the pool");
  if (shape.averages) return;
  gate_ = tensors.matrix("index_pool_gate", shape.key_width, hidden);
  offset_ = tensors.vector("index_pool_offset", shape.pool * shape.key_width);
}

// A call's arrays. A token's key is followed by its gates in a state, and in arrays of their own in a step.
struct PooledKeys::Step {
  const StateRows& rows;
  const int32_t* positions;
  const float* keys;
  const float* gates;
  float* states;
};

// `last`: the row's token, counted from its first, that completes a pool.
void PooledKeys::write_mean(const Step& step, int64_t row, int64_t last, float* key) const {
  const int64_t width = shape_.key_width, pool = shape_.pool;
  const int32_t slot = step.rows.slot_in(row);
  std::fill_n(key, width, 0.0f);
  for (int64_t i = 0; i < pool; ++i) {
    const int64_t token = last - (pool - 1) + i;
    if (token < 0 && slot == kNullState) continue;
    const float* own = token < 0 ? step.states + slot * state_floats(shape_) + i * width
                                 : step.keys + (step.rows.token_indptr[row] + token) * width;
    for (int64_t c = 0; c < width; ++c) key[c] += own[c];
  }
  for (int64_t c = 0; c < width; ++c) key[c] /= static_cast<float>(pool);
}

void PooledKeys::write_weighted(const Step& step, int64_t row, int64_t last, float* key) const {
  const int64_t width = shape_.key_width, pool = shape_.pool;
  const int64_t first = step.rows.token_indptr[row];
  const int32_t slot = step.rows.slot_in(row);
  const float* state = step.states + slot * state_floats(shape_);
  for (int64_t c = 0; c < width; ++c) {
    float most = -HUGE_VALF, sum = 0.0f, total = 0.0f;
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t i = 0; i < pool; ++i) {
        const int64_t token = last - (pool - 1) + i;
        const bool is_earlier = token < 0;
        if (is_earlier && slot == kNullState) continue;
        const float* earlier = state + i * 2 * width;
        const int64_t at = (first + token) * width + c;
        const float gate =
            (is_earlier ? earlier[width + c] : step.gates[at]) + offset_[static_cast<size_t>(i * width + c)];
        if (pass == 0) {
          most = std::max(most, gate);
          continue;
        }
        const float weight = std::exp(gate - most);
        sum += weight;
        total += weight * (is_earlier ? earlier[c] : step.keys[at]);
      }
    }
    key[c] = total / sum;
  }
}

// Tokens keep their places in a pool, so a state may be replaced in place.
void PooledKeys::leave_states(const Step& step, int64_t row) const {
  const int64_t width = shape_.key_width, num_floats = state_floats(shape_), own = token_floats(shape_);
  const int64_t first = step.rows.token_indptr[row];
  const int32_t slot_in = step.rows.slot_in(row);
  if (step.rows.num_tokens(row) == 0) return;
  step.rows.for_each_left(row, [&](int64_t end, int32_t slot) {
    if (slot == kNullState) return;
    const int64_t num_open = (step.positions[first] + end) % shape_.pool;
    float* to = step.states + slot * num_floats;
    for (int64_t i = 0; i < shape_.pool - 1; ++i, to += own) {
      const int64_t token = end - num_open + i;
      if (i >= num_open || (token < 0 && slot_in == kNullState)) {
        std::fill_n(to, own, 0.0f);
      } else if (token >= 0) {
        std::copy_n(step.keys + (first + token) * width, width, to);
        if (gate_) std::copy_n(step.gates + (first + token) * width, width, to + width);
      } else if (slot != slot_in) {
        std::copy_n(step.states + slot_in * num_floats + i * own, own, to);
      }
    }
  });
}

void PooledKeys::write(const AttentionCall& call, const float* normed, const float* keys,
                       const CachePlane& plane, float* states, const Finish& finish) const {
  const ballast::Step& step = call.step;
  require(step.batch.block_tokens % shape_.pool == 0,
          "block_tokens is " + std::to_string(step.batch.block_tokens) + "; expected a multiple of " +
              std::to_string(shape_.pool) + ", the tokens that share an index key");
  AttentionMemory& s = call.memory;
  if (gate_) {
    grow(s.pool_gates, step.num_tokens(), shape_.key_width);
    linear(call.pool, normed, step.num_tokens(), *gate_, s.pool_gates.data());
  }
  grow(s.pooled_key, step.num_tokens(), shape_.key_width);
  const Step own{step.states, step.batch.positions, keys, s.pool_gates.data(), states};
  for_tokens(call.pool, step.num_tokens(), [&](int64_t token) {
    if (step.batch.positions[token] % shape_.pool != shape_.pool - 1) return;
    const int64_t row = step.batch.request_of(token);
    const int64_t first_slot = step.slots[token] / shape_.pool * shape_.pool;
    const int64_t last = token - step.batch.query_indptr[row];
    float* key = s.pooled_key.data() + token * shape_.key_width;
    if (gate_) {
      write_weighted(own, row, last, key);
    } else {
      write_mean(own, row, last, key);
    }
    if (finish) finish(step.batch.positions[token] - (shape_.pool - 1), key);
    plane.write(call.kernels, first_slot * (shape_.key_width / shape_.pool), key, shape_.key_width);
  });
  // After all tokens: they read the states that are replaced here.
  call.pool.parallel_for(step.batch.num_requests, [&](int64_t row) { leave_states(own, row); });
}

void choose_complete_pools(const AttentionCall& call, const IndexShape& shape, int64_t pool,
                           const CachePlane& keys) {
  const Step& step = call.step;
  const int64_t num_tokens = step.num_tokens();
  AttentionMemory& s = call.memory;
  grow(s.last_pools, num_tokens, 1);
  grow(s.num_chosen, num_tokens, 1);
  grow(s.chosen_pools, num_tokens, shape.top_k);
  for (int64_t token = 0; token < num_tokens; ++token) {
    s.last_pools[static_cast<size_t>(token)] =
        (step.batch.positions[token] + 1) / static_cast<int32_t>(pool) - 1;
  }
  // A pool is a position of a cache with fewer tokens in a block.
  PagedBatch pools = step.batch;
  pools.num_slots /= pool;
  pools.block_tokens /= pool;
  pools.positions = s.last_pools.data();
  choose_positions(call.pool, call.kernels, s.index_query.data(), s.head_weights.data(),
                   {keys, shape.key_width, 0}, pools, shape, s.chosen_pools.data(), s.num_chosen.data());
}

void choose_pools(const AttentionCall& call, const IndexerShape& shape, const CachePlane& keys) {
  const Step& step = call.step;
  const int64_t num_tokens = step.num_tokens(), top_pools = shape.top_k / shape.pool;
  AttentionMemory& s = call.memory;
  choose_complete_pools(call, {shape.num_heads, shape.key_width, top_pools}, shape.pool, keys);
  for_tokens(call.pool, num_tokens, [&](int64_t token) {
    int32_t* chosen = s.chosen.data() + token * shape.most_chosen();
    int32_t* next = chosen;
    const int32_t* first = s.chosen_pools.data() + token * top_pools;
    const int32_t pool = static_cast<int32_t>(shape.pool);
    const auto take = [&](int32_t begin, int32_t end) {
      for (int32_t position = begin; position < end; ++position) *next++ = position;
    };
    int32_t& count = s.num_chosen[static_cast<size_t>(token)];
    for (int32_t i = 0; i < count; ++i) take(first[i] * pool, (first[i] + 1) * pool);
    take((s.last_pools[static_cast<size_t>(token)] + 1) * pool, step.batch.positions[token] + 1);
    count = static_cast<int32_t>(next - chosen);
  });
}

}  // namespace ballast
