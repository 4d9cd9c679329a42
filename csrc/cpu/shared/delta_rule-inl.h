// The gated delta rule. A lane is a column of the state, and sums run over rows in one fixed order.
#pragma once

#include "cpu/delta_rule.h"

namespace ballast {
namespace {

// Sums that are added up side by side; one alone would wait for each addition.
constexpr int kDeltaSums = 2;
constexpr int kDeltaVectors = 2;

// The sum over all rows for each column of kDeltaVectors vectors.
struct DeltaSums {
  Floats of[kDeltaSums][kDeltaVectors];
};

// The decay of a head's whole state. It multiplies the sum over rows instead of each row.
struct HeadDecay {
  explicit HeadDecay(const float* decays) : decay(broadcast_float(*decays)) {}
  // The factor of a row, not yet decayed, in what the state gives for a key.
  Floats of_key(const float* key, int64_t row) const { return broadcast_float(key[row]); }
  Floats of_row(int64_t) const { return decay; }
  // The value less what the decayed state gives, of which `sum` is the sum with the factors above.
  Floats error(Floats value, Floats sum) const { return multiply_subtract_from(decay, sum, value); }

  Floats decay;
};

// A decay for each row of the state.
struct RowDecays {
  explicit RowDecays(const float* of_rows) : decays(of_rows) {}
  Floats of_key(const float* key, int64_t row) const { return broadcast_float(key[row] * decays[row]); }
  Floats of_row(int64_t row) const { return broadcast_float(decays[row]); }
  Floats error(Floats value, Floats sum) const { return subtract(value, sum); }

  const float* decays;
};

BALLAST_INLINE void clear(DeltaSums& sums) {
#pragma GCC unroll 2
  for (int s = 0; s < kDeltaSums; ++s) {
#pragma GCC unroll 2
    for (int v = 0; v < kDeltaVectors; ++v) sums.of[s][v] = zero_floats();
  }
}

BALLAST_INLINE Floats total(const DeltaSums& sums, int vector) {
  return add(sums.of[0][vector], sums.of[1][vector]);
}

// What the state gives for a token's key, before and without the decay that `Decay` applies later.
template <class Decay>
BALLAST_INLINE void recall(const DeltaTile& in, int64_t token, int64_t column, DeltaSums& sums) {
  const float* key = in.keys + token * in.input_stride;
  const float* state = in.state + column;
  const Decay decay(in.decays + token * in.decay_stride);
  clear(sums);
  for (int64_t row = 0; row < in.key_width; row += kDeltaSums) {
#pragma GCC unroll 2
    for (int s = 0; s < kDeltaSums; ++s) {
      const Floats factor = decay.of_key(key, row + s);
#pragma GCC unroll 2
      for (int v = 0; v < kDeltaVectors; ++v) {
        const Floats old = load_floats(state + (row + s) * kDeltaColumns + v * kVectorRows);
        sums.of[s][v] = multiply_add(old, factor, sums.of[s][v]);
      }
    }
  }
}

// Updates the state by a token, for which it gave `recalled`, and writes the token's result. With kHasNext,
// `recalled` becomes what the new state gives for the next token: the same sums as those of `recall`, without
// reading the state again.
template <class Decay, bool kHasNext>
BALLAST_INLINE void update(const DeltaTile& in, int64_t token, int64_t column, DeltaSums& recalled) {
  const float* key = in.keys + token * in.input_stride;
  const float* query = in.queries + token * in.input_stride;
  const float* value = in.values + token * in.input_stride + column;
  float* state = in.state + column;
  const Decay decay(in.decays + token * in.decay_stride);
  const Decay next_decay(in.decays + (token + kHasNext) * in.decay_stride);
  const float* next_key = key + kHasNext * in.input_stride;
  const Floats beta = broadcast_float(in.betas[token * in.beta_stride]);
  Floats change[kDeltaVectors];
#pragma GCC unroll 2
  for (int v = 0; v < kDeltaVectors; ++v) {
    change[v] = multiply(beta, decay.error(load_floats(value + v * kVectorRows), total(recalled, v)));
  }
  DeltaSums results;
  clear(results);
  if (kHasNext) clear(recalled);
  for (int64_t row = 0; row < in.key_width; row += kDeltaSums) {
#pragma GCC unroll 2
    for (int s = 0; s < kDeltaSums; ++s) {
      const Floats factor = broadcast_float(key[row + s]);
      const Floats asked = broadcast_float(query[row + s]);
      const Floats kept = decay.of_row(row + s);
      const Floats next_factor = kHasNext ? next_decay.of_key(next_key, row + s) : asked;
#pragma GCC unroll 2
      for (int v = 0; v < kDeltaVectors; ++v) {
        float* entry = state + (row + s) * kDeltaColumns + v * kVectorRows;
        const Floats next = multiply_add(factor, change[v], multiply(kept, load_floats(entry)));
        store_floats(entry, next);
        results.of[s][v] = multiply_add(next, asked, results.of[s][v]);
        if (kHasNext) recalled.of[s][v] = multiply_add(next, next_factor, recalled.of[s][v]);
      }
    }
  }
  float* out = in.out + token * in.out_stride + column;
#pragma GCC unroll 2
  for (int v = 0; v < kDeltaVectors; ++v) store_floats(out + v * kVectorRows, total(results, v));
}

template <class Decay>
void delta_rule_of(const DeltaTile& tile) {
  if (tile.num_tokens == 0) return;
  for (int64_t column = 0; column < kDeltaColumns; column += kDeltaVectors * kVectorRows) {
    const int64_t last = tile.num_tokens - 1;
    DeltaSums recalled;
    recall<Decay>(tile, 0, column, recalled);
    for (int64_t token = 0; token < last; ++token) update<Decay, true>(tile, token, column, recalled);
    update<Decay, false>(tile, last, column, recalled);
  }
}

void delta_rule(const DeltaTile& tile) {
  if (tile.decays_rows) {
    delta_rule_of<RowDecays>(tile);
  } else {
    delta_rule_of<HeadDecay>(tile);
  }
}

}  // namespace
}  // namespace ballast
