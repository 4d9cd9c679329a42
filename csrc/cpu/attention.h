// Attention of a group of query rows over a stretch of positions, and how an indexer scores positions, as raw
// pointers.
//
// Only plain data here: this header is compiled into objects for instruction sets that the host may not have.
#pragma once

#include <cstdint>

namespace ballast {

// The rows of a group are padded to a multiple of this, which every vector's length divides; padding rows see
// no position.
constexpr int64_t kAttentionRows = 16;
// Positions between two corrections of the running maximum.
constexpr int64_t kSpanPositions = 48;

// A softmax over some positions, not yet normalised: weights are e^(score - maximum), `sum` is the sum of the
// weights, and `values` the weighted sum of the positions' values.
struct AttentionState {
  float* maximum;  // [rows]
  float* sum;      // [rows]
  float* values;   // [value_width][rows]
};

struct AttentionStretch {
  const float* query;  // [key_width][rows]
  // [rows]: a row sees the positions before this one, counted from the stretch's begin; it may lie outside.
  const float* num_seen;
  float fewest_seen;           // the smallest of num_seen
  int64_t num_rows;            // a multiple of kAttentionRows
  const float* const* keys;    // [key_width] for each position
  const float* const* values;  // [value_width] for each position; may lie within its key
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

// Positions that an indexer's heads score: of each position the sum over heads of weight * max(0, query ·
// key).
struct IndexStretch {
  const float* query;        // [key_width][rows], a row a head, zeros in surplus rows
  const float* weights;      // [rows], zeros in surplus rows
  int64_t num_rows;          // a multiple of kAttentionRows
  const float* const* keys;  // [key_width] for each position
  int64_t num_positions;
  int64_t key_width;
  float* products;  // scratch, [kSpanPositions][rows]
};

struct AttentionKernels {
  // A row's state depends only on the row and the positions that it sees, never on the other rows of the
  // group.
  void (*attend)(const AttentionStretch& stretch, const AttentionState& state);
  // Merges `next`, the state of the positions that follow, into `state`.
  void (*merge)(int64_t num_rows, int64_t value_width, const AttentionState& next,
                const AttentionState& state);
  // scores [num_positions]. A position's score depends on its key and the query alone.
  void (*index)(const IndexStretch& stretch, float* scores);
};

// Runs everywhere.
const AttentionKernels& reference_attention();

}  // namespace ballast
