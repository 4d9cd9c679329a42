// Latent attention of a group of query rows over a stretch of positions, as raw pointers.
//
// Only plain data here: this header is compiled into objects for instruction sets that the host may not have.
#pragma once

#include <cstdint>

namespace ballast {

// Rows of a group come in multiples of this, which every vector divides; surplus rows see nothing.
constexpr int64_t kAttentionRows = 16;
// Positions between two corrections of the running maximum.
constexpr int64_t kSpanPositions = 48;

// Softmax over some positions: weights are relative to `maximum`, `sum` is theirs, `values` their sum of
// values.
struct AttentionState {
  float* maximum;  // [rows]
  float* sum;      // [rows]
  float* values;   // [value_width][rows]
};

struct AttentionStretch {
  const float* query;  // [row_width][rows]
  const float*
      num_seen;       // [rows]; a row sees the positions before this one, counted from the stretch's begin
  float fewest_seen;  // of num_seen
  int64_t num_rows;   // a multiple of kAttentionRows
  const float* const* cache;  // a cached row [row_width] for each position
  int64_t num_positions;
  int64_t row_width;
  int64_t value_width;  // the first entries of a cached row, which are its value
  float scale;
  float* scores;  // room for [kSpanPositions + 1][rows]
};

struct AttentionKernels {
  // A row's state depends on the row and the positions that it sees, whatever other rows are in the group.
  void (*attend)(const AttentionStretch& stretch, const AttentionState& state);
  // Takes `next`, the state of positions that follow, into `state`.
  void (*merge)(int64_t num_rows, int64_t value_width, const AttentionState& next,
                const AttentionState& state);
};

// Runs everywhere.
const AttentionKernels& reference_attention();

}  // namespace ballast
