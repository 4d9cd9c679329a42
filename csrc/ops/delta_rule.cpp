#include "ops/delta_rule.h"

#include <algorithm>
#include <cstring>

#include "base/scratch.h"

namespace ballast {
namespace {

// A tile's copy, so that its rows are adjacent: in the state they are value_width apart, which maps them to a
// few sets of the cache.
class Tile {
 public:
  Tile(const DeltaShape& shape, float* states, int64_t head, int64_t column)
      : shape_(shape),
        states_(states + head * shape.key_width * shape.value_width + column),
        copy_(shape.key_width * kDeltaColumns) {}

  float* data() const { return copy_.get(); }

  void read(int32_t slot) {
    if (slot == kNullState) {
      std::fill_n(copy_.get(), shape_.key_width * kDeltaColumns, 0.0f);
      return;
    }
    const float* from = states_ + slot * shape_.state_floats();
    for (int64_t i = 0; i < shape_.key_width; ++i) {
      std::memcpy(copy_.get() + i * kDeltaColumns, from + i * shape_.value_width, kRowBytes);
    }
  }

  void write(int32_t slot) const {
    if (slot == kNullState) return;
    float* to = states_ + slot * shape_.state_floats();
    for (int64_t i = 0; i < shape_.key_width; ++i) {
      std::memcpy(to + i * shape_.value_width, copy_.get() + i * kDeltaColumns, kRowBytes);
    }
  }

 private:
  static constexpr size_t kRowBytes = kDeltaColumns * sizeof(float);

  const DeltaShape& shape_;
  float* states_;
  const Scratch<float> copy_;
};

}  // namespace

void delta_rule(ThreadPool& pool, const Kernels* kernels, const DeltaShape& shape, const DeltaInput& input,
                const StateRows& rows, float* states, float* out) {
  const DeltaRule compute = kernels == nullptr ? reference_delta_rule : kernels->delta_rule;
  const int64_t decays_per_head = shape.decay_width() / shape.num_heads;
  const int64_t tiles_per_head = shape.value_width / kDeltaColumns;
  const int64_t tiles_per_row = shape.num_heads * tiles_per_head;
  pool.parallel_for(rows.num_rows * tiles_per_row, [&](int64_t task) {
    const int64_t row = task / tiles_per_row;
    const int64_t head = task % tiles_per_row / tiles_per_head;
    const int64_t column = task % tiles_per_head * kDeltaColumns;
    const int64_t key_offset = shape.key_head(head) * shape.key_width;
    Tile tile(shape, states, head, column);
    tile.read(rows.slot_in(row));
    int64_t done = 0;
    rows.for_each_left(row, [&](int64_t end, int32_t slot) {
      const int64_t first = rows.token_indptr[row] + done;
      const auto at = [&](const float* inputs, int64_t offset) {
        return inputs + first * input.input_stride + offset;
      };
      compute({tile.data(), shape.key_width, end - done, at(input.queries, key_offset),
               at(input.keys, key_offset), at(input.values, head * shape.value_width + column),
               input.input_stride, shape.decays_rows,
               input.decays + first * shape.decay_width() + head * decays_per_head, shape.decay_width(),
               input.betas + first * shape.num_heads + head, shape.num_heads,
               out + (first * shape.num_heads + head) * shape.value_width + column,
               shape.num_heads * shape.value_width});
      tile.write(slot);
      done = end;
    });
  });
}

}  // namespace ballast
