#include "model/attention/compressor.h"

#include <cmath>
#include <utility>

#include "base/index_range.h"
#include "model/shared/fits.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace ballast {
namespace {

constexpr int64_t kTaskColumns = 64;

// A softmax of gates that was added up token by token, per column; zeros before the first token.
struct Running {
  float most[kTaskColumns];
  float sum[kTaskColumns];
  float total[kTaskColumns];

  void clear() { *this = {}; }

  void add(int64_t column, float gate, float value) {
    if (sum[column] == 0.0f || gate > most[column]) {
      const float kept = sum[column] == 0.0f ? 0.0f : std::exp(most[column] - gate);
      most[column] = gate;
      sum[column] = sum[column] * kept + 1.0f;
      total[column] = total[column] * kept + value;
    } else {
      const float weight = std::exp(gate - most[column]);
      sum[column] += weight;
      total[column] += weight * value;
    }
  }

  // The columns from `begin` on of a state's part, [3, width].
  void load(const float* part, int64_t width, int64_t begin, int64_t num_columns) {
    std::copy_n(part + begin, num_columns, most);
    std::copy_n(part + width + begin, num_columns, sum);
    std::copy_n(part + 2 * width + begin, num_columns, total);
  }
  void store(float* part, int64_t width, int64_t begin, int64_t num_columns) const {
    std::copy_n(most, num_columns, part + begin);
    std::copy_n(sum, num_columns, part + width + begin);
    std::copy_n(total, num_columns, part + 2 * width + begin);
  }
};

}  // namespace

Compressor::Compressor(const CompressorShape& shape, const std::string& role, int64_t hidden,
                       LayerTensors& tensors)
    : shape_(shape),
      value_(tensors.matrix(role + "_value", shape.columns(), hidden)),
      gate_(tensors.matrix(role + "_gate", shape.columns(), hidden)),
      offset_(tensors.vector(role + "_offset", shape.ratio * shape.columns())),
      norm_(tensors.vector(role + "_norm", shape.width)) {
  require(shape.width % shape.row_tokens() == 0 && shape.ratio % shape.row_tokens() == 0,
          tensors.layer() + " has entries of " + std::to_string(shape.width) + " numbers for " +
              std::to_string(shape.ratio) + " tokens; expected multiples of " +
              std::to_string(shape.row_tokens()));
  require(shape.rope_dim <= shape.width, tensors.layer() + " rotates " + std::to_string(shape.rope_dim) +
                                             " of " + std::to_string(shape.width) + " numbers of an entry");
}

// Columns begin … end - 1 of a row's entries: tokens in order, so that no sum depends on where steps begin.
void Compressor::pass(const AttentionCall& call, int64_t row, int64_t begin, int64_t end,
                      float* states) const {
  const StateRows& rows = call.step.states;
  const int64_t width = shape_.width, columns = shape_.columns(), num_columns = end - begin;
  const int64_t first = rows.token_indptr[row];
  const float* values = call.memory.entry_values.data();
  const float* gates = call.memory.entry_gates.data();
  Running own, next;
  own.clear();
  next.clear();
  const int32_t slot_in = rows.slot_in(row);
  if (slot_in != kNullState) {
    const float* state = states + slot_in * shape_.state_floats();
    own.load(state, width, begin, num_columns);
    if (shape_.overlaps) next.load(state + 3 * width, width, begin, num_columns);
  }
  const auto add = [&](Running& entry, int64_t token, int64_t offset, int64_t shift) {
    const int64_t at = token * columns + shift;
    const float* offsets = offset_.data() + offset * columns + shift;
    for (int64_t c = 0; c < num_columns; ++c) entry.add(c, gates[at + c] + offsets[c], values[at + c]);
  };
  int64_t done = 0;
  rows.for_each_left(row, [&](int64_t num_tokens, int32_t slot) {
    for (; done < num_tokens; ++done) {
      const int64_t token = first + done;
      const int64_t offset = call.step.batch.positions[token] % shape_.ratio;
      add(own, token, offset, begin + (shape_.overlaps ? width : 0));
      if (shape_.overlaps) add(next, token, offset, begin);
      if (offset != shape_.ratio - 1) continue;
      float* entry = call.memory.entries.data() + token * width + begin;
      for (int64_t c = 0; c < num_columns; ++c) entry[c] = own.total[c] / own.sum[c];
      own = next;
      next.clear();
    }
    if (slot == kNullState) return;
    float* state = states + slot * shape_.state_floats();
    own.store(state, width, begin, num_columns);
    if (shape_.overlaps) next.store(state + 3 * width, width, begin, num_columns);
  });
}

void Compressor::write(const AttentionCall& call, const float* normed, float* states,
                       const CachePlane& plane) const {
  const Step& step = call.step;
  const int64_t num_tokens = step.num_tokens();
  require(step.batch.block_tokens % shape_.row_tokens() == 0,
          "block_tokens is " + std::to_string(step.batch.block_tokens) + "; expected a multiple of " +
              std::to_string(shape_.row_tokens()) + ", whose rows hold a compressed entry");
  AttentionMemory& s = call.memory;
  grow(s.entry_values, num_tokens, shape_.columns());
  grow(s.entry_gates, num_tokens, shape_.columns());
  grow(s.entries, num_tokens, shape_.width);
  linear(call.pool, normed, num_tokens, value_, s.entry_values.data());
  linear(call.pool, normed, num_tokens, gate_, s.entry_gates.data());
  const Chunks chunks(shape_.width, kTaskColumns);
  call.pool.parallel_for(step.states.num_rows * chunks.count(), [&](int64_t task) {
    const int64_t row = task / chunks.count();
    const IndexRange columns = chunks[task % chunks.count()];
    if (step.states.num_tokens(row) > 0) pass(call, row, columns.begin, columns.end, states);
  });
  for_tokens(call.pool, num_tokens, [&](int64_t token) {
    const int64_t position = step.batch.positions[token];
    if (position % shape_.ratio != shape_.ratio - 1) return;
    float* entry = s.entries.data() + token * shape_.width;
    rms_norm(entry, 1, shape_.width, norm_.data(), call.rms_eps, entry);
    const int64_t pairs = (position + 1 - shape_.ratio) * (shape_.rope_dim / 2);
    rope_interleaved(entry + shape_.width - shape_.rope_dim, 1, 1, shape_.rope_dim, call.rope.cos + pairs,
                     call.rope.sin + pairs);
    plane.write(call.kernels, entry_at(step.slots[token]), entry, shape_.width);
  });
}

}  // namespace ballast
