#include "ops/recurrent/delta_rule.h"

#include <algorithm>
#include <cstring>
#include <vector>

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

// Tokens of a row that all tiles compute before any tile continues. The inputs of successive tokens are far
// apart; those of more tokens would leave the second-level cache before the next tile reads them.
constexpr int64_t kBlockTokens = 64;

// The end of a row's block of tokens from `begin`. Between blocks the state is in the row's slot, so a row
// that leaves none is one block.
int64_t end_of_block(const StateRows& rows, int64_t row, int64_t begin) {
  const int64_t num_tokens = rows.num_tokens(row);
  return rows.slot_out(row) == kNullState ? num_tokens : std::min(num_tokens, begin + kBlockTokens);
}

// Prefetches the lines that only this tile uses. They are too far apart for the CPU's own prefetcher.
void prefetch(const DeltaTile& tile) {
  constexpr int64_t kLineFloats = 16;
  for (int64_t token = 0; token < tile.num_tokens; ++token) {
    for (int64_t column = 0; column < kDeltaColumns; column += kLineFloats) {
      __builtin_prefetch(tile.values + token * tile.input_stride + column, 0);
      __builtin_prefetch(tile.out + token * tile.out_stride + column, 1);
    }
  }
}

// The rows with a block from `begin`.
std::vector<int64_t> rows_from(const StateRows& rows, int64_t begin) {
  std::vector<int64_t> found;
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    const bool has_more = begin < rows.num_tokens(row) && rows.slot_out(row) != kNullState;
    if (begin == 0 || has_more) found.push_back(row);
  }
  return found;
}

}  // namespace

void delta_rule(ThreadPool& pool, const Kernels* kernels, const DeltaShape& shape, const DeltaInput& input,
                const StateRows& rows, float* states, float* out) {
  const DeltaRule compute = kernels == nullptr ? reference_delta_rule : kernels->delta_rule;
  const int64_t decays_per_head = shape.decay_width() / shape.num_heads;
  const int64_t tiles_per_head = shape.value_width / kDeltaColumns;
  const int64_t tiles_per_row = shape.num_heads * tiles_per_head;
  int64_t begin = 0;
  for (auto active = rows_from(rows, begin); !active.empty(); active = rows_from(rows, begin)) {
    pool.parallel_for(static_cast<int64_t>(active.size()) * tiles_per_row, [&](int64_t task) {
      const int64_t row = active[static_cast<size_t>(task / tiles_per_row)];
      const int64_t head = task % tiles_per_row / tiles_per_head;
      const int64_t column = task % tiles_per_head * kDeltaColumns;
      const int64_t key_offset = shape.key_head(head) * shape.key_width;
      Tile tile(shape, states, head, column);
      tile.read(begin == 0 ? rows.slot_in(row) : rows.slot_out(row));
      int64_t done = begin;
      const auto continue_to = [&](int64_t end, int32_t slot) {
        const int64_t first = rows.token_indptr[row] + done;
        const auto at = [&](const float* inputs, int64_t offset) {
          return inputs + first * input.input_stride + offset;
        };
        const DeltaTile part{tile.data(),
                             shape.key_width,
                             end - done,
                             at(input.queries, key_offset),
                             at(input.keys, key_offset),
                             at(input.values, head * shape.value_width + column),
                             input.input_stride,
                             shape.decays_rows,
                             input.decays + first * shape.decay_width() + head * decays_per_head,
                             shape.decay_width(),
                             input.betas + first * shape.num_heads + head,
                             shape.num_heads,
                             out + (first * shape.num_heads + head) * shape.value_width + column,
                             shape.num_heads * shape.value_width};
        prefetch(part);
        compute(part);
        tile.write(slot);
        done = end;
      };
      const int64_t block_end = end_of_block(rows, row, begin);
      rows.for_each_left(row, [&](int64_t end, int32_t slot) {
        if ((end > begin || begin == 0) && end <= block_end) continue_to(end, slot);
      });
      if (block_end < rows.num_tokens(row)) continue_to(block_end, rows.slot_out(row));
    });
    begin += kBlockTokens;
  }
}

}  // namespace ballast
