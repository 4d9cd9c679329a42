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
  HeadDecay(const DeltaTile& in, int64_t token)
      : decay(broadcast_float(in.decays[token * in.decay_stride])) {}
  // The factors of rows that are not decayed yet, in the product of the state and a token's key.
  static const float* factors(const DeltaTile& in, int64_t token, float*) {
    return in.keys + token * in.input_stride;
  }
  Floats of_row(int64_t) const { return decay; }
  // The value less what the decayed state gives, of which `sum` is the sum with the factors above.
  Floats error(Floats value, Floats sum) const { return multiply_subtract_from(decay, sum, value); }

  Floats decay;
};

// A decay for each row of the state.
struct RowDecays {
  RowDecays(const DeltaTile& in, int64_t token) : decays(in.decays + token * in.decay_stride) {}
  static const float* factors(const DeltaTile& in, int64_t token, float* memory) {
    const float* key = in.keys + token * in.input_stride;
    const float* of_rows = in.decays + token * in.decay_stride;
    for (int64_t row = 0; row < in.key_width; ++row) memory[row] = key[row] * of_rows[row];
    return memory;
  }
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

// The sum of the state's rows times `factors`.
BALLAST_INLINE void recall(const DeltaTile& in, const float* factors, int64_t column, DeltaSums& sums) {
  const float* state = in.state + column;
  clear(sums);
  for (int64_t row = 0; row < in.key_width; row += kDeltaSums) {
#pragma GCC unroll 2
    for (int s = 0; s < kDeltaSums; ++s) {
      const Floats factor = broadcast_float(factors[row + s]);
#pragma GCC unroll 2
      for (int v = 0; v < kDeltaVectors; ++v) {
        const Floats old = load_floats(state + (row + s) * kDeltaColumns + v * kVectorRows);
        sums.of[s][v] = multiply_add(old, factor, sums.of[s][v]);
      }
    }
  }
}

// Updates the state by a token, for which it gave `recalled`, and writes the token's result. With kHasNext,
// `recalled` becomes the sum of the new state's rows times `next_factors`: the same sums as those of
// `recall`, without reading the state again.
template <class Decay, bool kHasNext>
BALLAST_INLINE void update(const DeltaTile& in, int64_t token, const float* next_factors, int64_t column,
                           DeltaSums& recalled) {
  const float* key = in.keys + token * in.input_stride;
  const float* query = in.queries + token * in.input_stride;
  const float* value = in.values + token * in.input_stride + column;
  float* state = in.state + column;
  const Decay decay(in, token);
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
      const Floats next_factor = kHasNext ? broadcast_float(next_factors[row + s]) : asked;
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
  float memory[kMostDeltaRows];
  for (int64_t column = 0; column < kDeltaColumns; column += kDeltaVectors * kVectorRows) {
    const int64_t last = tile.num_tokens - 1;
    DeltaSums recalled;
    recall(tile, Decay::factors(tile, 0, memory), column, recalled);
    for (int64_t token = 0; token < last; ++token) {
      update<Decay, true>(tile, token, Decay::factors(tile, token + 1, memory), column, recalled);
    }
    update<Decay, false>(tile, last, nullptr, column, recalled);
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
