#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "base/index_range.h"
#include "base/scratch.h"
#include "model/attention/attention.h"
#include "model/attention/compressor.h"
#include "model/attention/pooled_keys.h"
#include "model/shared/fits.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace ballast {
namespace {

// Rotates the last rope_dim entries of each head, pairs of neighbours. sin [rope_dim / 2] decides the
// direction.
void rotate_ends(float* heads, int64_t num_heads, int64_t width, int64_t rope_dim, const float* cos,
                 const float* sin) {
  for (int64_t head = 0; head < num_heads; ++head) {
    rope_interleaved(heads + (head + 1) * width - rope_dim, 1, 1, rope_dim, cos, sin);
  }
}

// Chooses the entries that a token attends to: by several small queries and a key per entry, which has a
// compressor of its own.
class EntryIndexer {
 public:
  EntryIndexer(const CompressedShape& shape, int64_t hidden, int64_t q_lora_rank, LayerTensors& tensors)
      : shape_(*shape.index),
        rope_dim_(shape.rope_dim),
        query_up_(tensors.matrix("index_query_up", shape_.num_heads * shape_.key_width, q_lora_rank)),
        head_weights_(tensors.matrix("index_head_weights", shape_.num_heads, hidden)),
        keys_({shape_.key_width, shape.ratio, shape.rope_dim, true}, "index_entry", hidden, tensors) {
    require(shape_.num_heads > 0 && shape_.top_k > 0,
            tensors.layer() + " chooses " + std::to_string(shape_.top_k) + " entries by " +
                std::to_string(shape_.num_heads) + " heads; expected at least 1 of each");
  }

  const Compressor& keys() const { return keys_; }

  // Writes the keys that the step completes into the second plane, and the chosen entries into the memory.
  void choose(const AttentionCall& call, const float* normed, const float* query_down,
              const LayerCache& cache) const {
    const int64_t num_tokens = call.step.num_tokens(), num_heads = shape_.num_heads;
    AttentionMemory& s = call.memory;
    grow(s.index_query, num_tokens, num_heads * shape_.key_width);
    grow(s.head_weights, num_tokens, num_heads);
    linear(call.pool, query_down, num_tokens, query_up_, s.index_query.data());
    linear(call.pool, normed, num_tokens, head_weights_, s.head_weights.data());
    const float scale = 1.0f / std::sqrt(static_cast<float>(num_heads * shape_.key_width));
    for_tokens(call.pool, num_tokens, [&](int64_t token) {
      const int64_t pairs = call.step.batch.positions[token] * (rope_dim_ / 2);
      rotate_ends(s.index_query.data() + token * num_heads * shape_.key_width, num_heads, shape_.key_width,
                  rope_dim_, call.rope.cos + pairs, call.rope.sin + pairs);
      float* weights = s.head_weights.data() + token * num_heads;
      for (int64_t head = 0; head < num_heads; ++head) weights[head] *= scale;
    });
    keys_.write(call, normed, cache.states[2], cache.planes[1]);
    choose_complete_pools(call, shape_, keys_.shape().ratio, cache.planes[1]);
  }

 private:
  const IndexShape shape_;
  const int64_t rope_dim_;
  const Matrix query_up_;      // [index heads * key_width, q_lora_rank]
  const Matrix head_weights_;  // [index heads, D]
  const Compressor keys_;
};

CompressedShape checked(const CompressedShape& shape, const std::string& layer) {
  require(shape.window > 0 && shape.rope_dim <= shape.head_dim,
          layer + " has a window of " + std::to_string(shape.window) + " tokens and rotates " +
              std::to_string(shape.rope_dim) + " of " + std::to_string(shape.head_dim) +
              " entries of a head");
  require(shape.output_groups > 0 && shape.num_heads % shape.output_groups == 0,
          layer + " has " + std::to_string(shape.num_heads) + " heads in " +
              std::to_string(shape.output_groups) + " groups; expected equal groups");
  require(shape.ratio != 0 || !shape.index, layer + " has an indexer, but no entries that it could choose");
  return shape;
}

// The last positions of a sequence are a state: a ring, position p in row p % window. Keys are values as
// well, so what a token has attended to is rotated backwards by its position.
class CompressedAttention final : public Attention {
 public:
  CompressedAttention(const CompressedShape& shape, int64_t hidden, LayerTensors& tensors)
      : shape_(checked(shape, tensors.layer())),
        query_down_(tensors.matrix_of_width("query_down", hidden)),
        query_norm_(tensors.vector("query_norm", query_down_.rows())),
        query_up_(tensors.matrix("query_up", shape.num_heads * shape.head_dim, query_down_.rows())),
        key_(tensors.matrix("key", shape.head_dim, hidden)),
        key_norm_(tensors.vector("key_norm", shape.head_dim)),
        sinks_(tensors.vector("sinks", shape.num_heads)),
        output_up_(tensors.matrix_of_rows("output_up", hidden)),
        output_down_(tensors.heads("output_down", shape.output_groups, group_rank(tensors.layer()),
                                   shape.num_heads / shape.output_groups * shape.head_dim)),
        ones_(static_cast<size_t>(shape.head_dim), 1.0f) {
    if (shape.ratio == 0) return;
    entries_.emplace(CompressorShape{shape.head_dim, shape.ratio, shape.rope_dim, shape.index.has_value()},
                     "entry", hidden, tensors);
    if (shape.index) indexer_.emplace(shape, hidden, query_down_.rows(), tensors);
  }

  std::vector<int64_t> plane_widths() const override {
    if (!entries_) return {};
    if (!indexer_) return {entries_->shape().row_floats()};
    return {entries_->shape().row_floats(), indexer_->keys().shape().row_floats()};
  }
  std::vector<int64_t> state_floats() const override {
    const int64_t ring = shape_.window * shape_.head_dim;
    if (!entries_) return {ring};
    if (!indexer_) return {ring, entries_->shape().state_floats()};
    return {ring, entries_->shape().state_floats(), indexer_->keys().shape().state_floats()};
  }
  int64_t rope_dim() const override { return shape_.rope_dim; }
  void attend(const AttentionCall& call, const float* normed, const LayerCache& cache,
              float* out) const override;

 private:
  int64_t group_rank(const std::string& layer) const {
    require(output_up_.cols() % shape_.output_groups == 0,
            layer + " has an output of " + std::to_string(output_up_.cols()) + " columns for " +
                std::to_string(shape_.output_groups) + " groups; expected a multiple");
    return output_up_.cols() / shape_.output_groups;
  }
  int64_t num_seen(int64_t position) const { return std::min(shape_.window, position + 1); }

  void project(const AttentionCall& call, const float* normed) const;
  void attend_to_rows(const AttentionCall& call, const LayerCache& cache) const;
  void leave_ring(const AttentionCall& call, int64_t row, float* states) const;

  const CompressedShape shape_;
  const Matrix query_down_;              // [q_lora_rank, D]
  const std::vector<float> query_norm_;  // [q_lora_rank]
  const Matrix query_up_;                // [H * head_dim, q_lora_rank]
  const Matrix key_;                     // [head_dim, D]
  const std::vector<float> key_norm_;    // [head_dim]
  const std::vector<float> sinks_;       // [H]
  const Matrix output_up_;               // [D, groups * rank]
  const HeadMatrix output_down_;         // a group of heads: [rank, H / groups * head_dim]
  const std::vector<float> ones_;        // [head_dim], the weights of the norm of queries
  std::optional<Compressor> entries_;
  std::optional<EntryIndexer> indexer_;
};

// Queries and keys, normed and rotated.
void CompressedAttention::project(const AttentionCall& call, const float* normed) const {
  const CompressedShape& shape = shape_;
  const int64_t num_tokens = call.step.num_tokens(), rank = query_down_.rows(), width = shape.head_dim;
  AttentionMemory& s = call.memory;
  grow(s.query_down, num_tokens, rank);
  grow(s.query, num_tokens, shape.num_heads * width);
  grow(s.key, num_tokens, width);
  linear(call.pool, normed, num_tokens, query_down_, s.query_down.data());
  for_tokens(call.pool, num_tokens, [&](int64_t token) {
    float* down = s.query_down.data() + token * rank;
    rms_norm(down, 1, rank, query_norm_.data(), call.rms_eps, down);
  });
  linear(call.pool, s.query_down.data(), num_tokens, query_up_, s.query.data());
  linear(call.pool, normed, num_tokens, key_, s.key.data());
  for_tokens(call.pool, num_tokens, [&](int64_t token) {
    const int64_t pairs = call.step.batch.positions[token] * (shape.rope_dim / 2);
    const float* cos = call.rope.cos + pairs;
    const float* sin = call.rope.sin + pairs;
    float* queries = s.query.data() + token * shape.num_heads * width;
    float* key = s.key.data() + token * width;
    rms_norm(queries, shape.num_heads, width, ones_.data(), call.rms_eps, queries);
    rms_norm(key, 1, width, key_norm_.data(), call.rms_eps, key);
    rotate_ends(queries, shape.num_heads, width, shape.rope_dim, cos, sin);
    rotate_ends(key, 1, width, shape.rope_dim, cos, sin);
  });
}

// Entries of a half-precision cache as floats, as the rows of windows are. A call converts one entry of each
// row.
class WidenedEntries {
 public:
  void begin(int64_t num_rows, int64_t width) {
    stride_ = Chunks(width, kAttentionRows).count() * kAttentionRows;
    grow(floats_, num_rows, stride_);
    next_ = floats_.data();
  }
  const float* add(const AttentionKernels& kernels, const void* halves, int64_t width) {
    float* entry = next_;
    next_ += stride_;
    kernels.widen(halves, width, entry);
    return entry;
  }

 private:
  std::vector<float> floats_;
  float* next_ = nullptr;
  int64_t stride_ = 0;
};

// A token's rows are those of its window, then its entries, both ascending.
void CompressedAttention::attend_to_rows(const AttentionCall& call, const LayerCache& cache) const {
  const Step& step = call.step;
  const int64_t num_tokens = step.num_tokens(), width = shape_.head_dim, window = shape_.window;
  AttentionMemory& s = call.memory;
  grow(s.num_listed, num_tokens, 1);
  grow(s.attended, num_tokens, shape_.num_heads * width);
  for (int64_t token = 0; token < num_tokens; ++token) {
    const int64_t position = step.batch.positions[token];
    const int64_t num_entries = indexer_   ? s.num_chosen[static_cast<size_t>(token)]
                                : entries_ ? (position + 1) / shape_.ratio
                                           : 0;
    s.num_listed[static_cast<size_t>(token)] = static_cast<int32_t>(num_seen(position) + num_entries);
  }
  const bool is_half = entries_ && cache.planes[0].is_half;
  const AttentionKernels& kernels = attention_kernels(call.kernels);
  const auto locate = [&](int64_t request, int64_t token, IndexRange range, const void** rows) {
    thread_local WidenedEntries widened;
    const int64_t position = step.batch.positions[token], num_window = num_seen(position);
    const int64_t first_token = step.batch.query_indptr[request];
    const int64_t first_position = step.batch.positions[first_token];
    const float* ring = cache.states[0] + step.states.slot_in(request) * window * width;
    if (is_half) widened.begin(range.size(), width);
    for (int64_t index = range.begin; index < range.end; ++index, ++rows) {
      if (index >= num_window) {
        const int64_t nth = index - num_window;
        const int64_t own =
            indexer_ ? s.chosen_pools[static_cast<size_t>(token * shape_.index->top_k + nth)] : nth;
        const int64_t last = (own + 1) * shape_.ratio - 1;
        const void* entry = cache.planes[0].at(entries_->entry_at(step.batch.slot(request, last)));
        *rows = is_half ? widened.add(kernels, entry, width) : entry;
        continue;
      }
      const int64_t key = position + 1 - num_window + index;
      *rows = key < first_position ? ring + key % window * width
                                   : s.key.data() + (first_token + key - first_position) * width;
    }
  };
  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
  listed_attention(call.pool, call.kernels, {{s.query.data(), width, width}, {}},
                   {s.num_listed.data(), locate}, step.batch,
                   {shape_.num_heads, 1, width, width, scale, 0, sinks_.data()}, s.attended.data());
}

void CompressedAttention::leave_ring(const AttentionCall& call, int64_t row, float* states) const {
  const StateRows& rows = call.step.states;
  const int64_t width = shape_.head_dim, window = shape_.window, first = rows.token_indptr[row];
  if (rows.num_tokens(row) == 0) return;
  const int32_t slot_in = rows.slot_in(row);
  const int64_t first_position = call.step.batch.positions[first];
  const float* from = states + slot_in * window * width;
  rows.for_each_left(row, [&](int64_t end, int32_t slot) {
    if (slot == kNullState) return;
    float* to = states + slot * window * width;
    const int64_t last = first_position + end;  // the position after
    for (int64_t position = last - window; position < last; ++position) {
      float* key = to + (position + window) % window * width;
      if (position >= first_position) {
        std::copy_n(call.memory.key.data() + (first + position - first_position) * width, width, key);
      } else if (position < 0 || slot_in == kNullState) {
        std::fill_n(key, width, 0.0f);
      } else if (slot != slot_in) {
        std::copy_n(from + position % window * width, width, key);
      }
    }
  });
}

void CompressedAttention::attend(const AttentionCall& call, const float* normed, const LayerCache& cache,
                                 float* out) const {
  const int64_t num_tokens = call.step.num_tokens(), num_pairs = shape_.rope_dim / 2;
  AttentionMemory& s = call.memory;
  project(call, normed);
  if (entries_) entries_->write(call, normed, cache.states[1], cache.planes[0]);
  if (indexer_) indexer_->choose(call, normed, s.query_down.data(), cache);
  attend_to_rows(call, cache);
  call.pool.parallel_for(call.step.states.num_rows,
                         [&](int64_t row) { leave_ring(call, row, cache.states[0]); });
  for_tokens(call.pool, num_tokens, [&](int64_t token) {
    const int64_t pairs = call.step.batch.positions[token] * num_pairs;
    const Scratch<float> backwards(num_pairs);
    std::transform(call.rope.sin + pairs, call.rope.sin + pairs + num_pairs, backwards.get(),
                   [](float sin) { return -sin; });
    rotate_ends(s.attended.data() + token * shape_.num_heads * shape_.head_dim, shape_.num_heads,
                shape_.head_dim, shape_.rope_dim, call.rope.cos + pairs, backwards.get());
  });
  const int64_t rank = output_up_.cols() / shape_.output_groups;
  grow(s.values, num_tokens, output_up_.cols());
  head_linear(call.pool, s.attended.data(), num_tokens, output_down_.matrix,
              output_down_.heads(shape_.output_groups, rank), s.values.data());
  linear(call.pool, s.values.data(), num_tokens, output_up_, out);
}

}  // namespace

std::shared_ptr<const Attention> make_attention(const CompressedShape& shape, int64_t hidden,
                                                LayerTensors& tensors) {
  return std::make_shared<CompressedAttention>(shape, hidden, tensors);
}

}  // namespace ballast
