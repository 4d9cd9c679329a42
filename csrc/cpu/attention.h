// Attention of a group of query rows over a range of positions, and scores of positions for an indexer.
//
// Only plain data: this header is compiled into objects for instruction sets that the host may not have.
#pragma once

#include <cstdint>

namespace ballast {

// Rows of a group are padded to a multiple of this value, which each vector length divides. Padding rows see
// no position.
constexpr int64_t kAttentionRows = 16;
// Positions between two corrections of the running maximum.
constexpr int64_t kSpanPositions = 48;

// A softmax over some positions, not normalized: weights are e^(score - maximum), `sum` is their sum, and
// `values` the weighted sum of the values.
struct AttentionState {
  float* maximum;  // [rows]
  float* sum;      // [rows]
  float* values;   // [value_width][rows]
};

// Rows of the cache, one per position: floats, or IEEE halves that are widened a span at a time.
struct PositionRows {
  const void* const* rows;  // per position
  bool are_halves;
  float* widened;          // scratch for halves, [kSpanPositions][widened_stride]; else null
  int64_t widened_stride;  // a multiple of kAttentionRows, at least the width of a row
};

struct AttentionStretch {
  const float* query;  // [key_width][rows]
  // [rows]: a row sees the positions below this one, relative to the first of the range; may be outside the
  // range.
  const float* num_seen;
  float fewest_seen;          // minimum of num_seen
  int64_t num_rows;           // a multiple of kAttentionRows
  int64_t num_live;           // rows without padding
  PositionRows keys;          // of [key_width]
  const void* const* values;  // of [value_width], as the keys; null: they begin the keys
  int64_t num_positions;
  int64_t key_width;
  int64_t value_width;
  float scale;
  float* scores;  // scratch, [kSpanPositions + 1][rows]
  // [rows]: with windows, a row sees the positions from this one on, counted in the same way; null without.
  const float* first_seen = nullptr;
  float fewest_passed = 0.0f;  // the smallest of first_seen, of rows without padding
  float most_passed = 0.0f;    // the largest
};

// Positions to score: the score of a position is the sum over heads of weight * max(0, query · key).
struct IndexStretch {
  const float* query;    // [key_width][rows], one row per head, zeros in padding rows
  const float* weights;  // [rows], zeros in padding rows
  int64_t num_rows;      // a multiple of kAttentionRows
  PositionRows keys;     // of [key_width]
  int64_t num_positions;
  int64_t key_width;
  float* products;  // scratch, [kSpanPositions][rows]
};

struct AttentionKernels {
  // The state of a row depends only on the row and the positions that it sees, never on other rows of the
  // group.
  void (*attend)(const AttentionStretch& stretch, const AttentionState& state);
  // Merges `next`, the state of the positions that follow, into `state`.
  void (*merge)(int64_t num_rows, int64_t value_width, const AttentionState& next,
                const AttentionState& state);
  // scores [num_positions]. The score of a position depends only on its key and the query.
  void (*index)(const IndexStretch& stretch, float* scores);
  // Rounds n floats to halves, ties to even; beyond the largest half, to that.
  void (*narrow)(const float* from, int64_t n, void* to);
  // Writes n halves as floats, then zeros up to a multiple of kAttentionRows at most.
  void (*widen)(const void* from, int64_t n, float* to);
};

// Runs on every CPU.
const AttentionKernels& reference_attention();

}  // namespace ballast
