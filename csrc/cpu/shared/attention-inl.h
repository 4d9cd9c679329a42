// Flash attention. A lane is a query row, so the arithmetic of a row is one fixed sequence for all groups:
// scores and values are sums of broadcast cache entries times vectors of rows.
#pragma once

#include "cpu/attention.h"

namespace ballast {
namespace {

// Below any score; finite, so that differences of maxima are numbers.
constexpr float kNoMaximum = -1e30f;

// e^a for a <= 0, within 2 units in the last place; 0 below -87. Keeps NaN.
BALLAST_INLINE Floats exp_of_negative(Floats a) {
  const Floats to_low_bits = broadcast_float(12582912.0f);  // 1.5 * 2^23: rounds the addend to an integer
  const Floats shifted = add(multiply(a, broadcast_float(1.44269504f)), to_low_bits);
  const Floats n = subtract(shifted, to_low_bits);
  // a - n ln 2. ln 2 is split in two, and n times the first summand is exact.
  Floats r = multiply_subtract_from(n, broadcast_float(0.693145752f), a);
  r = multiply_subtract_from(n, broadcast_float(1.42860677e-6f), r);
  // Taylor series to the seventh power: |r| <= 0.35, so the remainder is below 6e-9.
  Floats sum = broadcast_float(1.0f / 5040.0f);
  sum = multiply_add(sum, r, broadcast_float(1.0f / 720.0f));
  sum = multiply_add(sum, r, broadcast_float(1.0f / 120.0f));
  sum = multiply_add(sum, r, broadcast_float(1.0f / 24.0f));
  sum = multiply_add(sum, r, broadcast_float(1.0f / 6.0f));
  sum = multiply_add(sum, r, broadcast_float(0.5f));
  sum = multiply_add(sum, r, broadcast_float(1.0f));
  sum = multiply_add(sum, r, broadcast_float(1.0f));
  return zero_where_less(a, broadcast_float(-87.0f), multiply(sum, exponent_of_low_bits(shifted)));
}

// Writes whole vectors to `to`: zeros after the nth number.
BALLAST_INLINE void widen(const uint8_t* from, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + kVectorRows <= n; i += kVectorRows) store_floats(to + i, halves_to_floats(from + 2 * i));
  if (i == n) return;
  uint8_t rest[2 * kVectorRows] = {};
  __builtin_memcpy(rest, from + 2 * i, static_cast<size_t>(2 * (n - i)));
  store_floats(to + i, halves_to_floats(rest));
}

void widen_row(const void* from, int64_t n, float* to) { widen(static_cast<const uint8_t*>(from), n, to); }

void narrow(const float* from, int64_t n, void* to) {
  const Floats most = broadcast_float(65504.0f), least = broadcast_float(-65504.0f);
  uint8_t* halves = static_cast<uint8_t*>(to);
  const auto store = [&](Floats numbers, uint8_t* place) {
    numbers = where_less(most, numbers, most, numbers);
    store_halves(place, where_less(numbers, least, least, numbers));
  };
  int64_t i = 0;
  for (; i + kVectorRows <= n; i += kVectorRows) store(load_floats(from + i), halves + 2 * i);
  if (i == n) return;
  float rest[kVectorRows] = {};
  uint8_t narrowed[2 * kVectorRows];
  __builtin_memcpy(rest, from + i, static_cast<size_t>(n - i) * sizeof(float));
  store(load_floats(rest), narrowed);
  __builtin_memcpy(halves + 2 * i, narrowed, static_cast<size_t>(2 * (n - i)));
}

// Prefetches rows of the cache that are read next, a few lines at a time between the computations with
// others: many in a row would have to wait for each other.
class NextRows {
 public:
  NextRows() = default;
  // `num_steps`: how often `step` is called, about.
  NextRows(const void* const* rows, int64_t num_rows, int64_t row_bytes, int64_t num_steps)
      : rows_(rows),
        num_rows_(num_rows),
        row_bytes_(row_bytes),
        lines_(num_rows * ((row_bytes + kLineBytes - 1) / kLineBytes) / (num_steps < 1 ? 1 : num_steps) + 1) {
  }

  __attribute__((always_inline)) void step() {
    for (int64_t line = 0; line < lines_ && row_ < num_rows_; ++line) {
      __builtin_prefetch(static_cast<const char*>(rows_[row_]) + at_);
      at_ += kLineBytes;
      if (at_ < row_bytes_) continue;
      at_ = 0;
      ++row_;
    }
  }

 private:
  static constexpr int64_t kLineBytes = 64;
  const void* const* rows_ = nullptr;
  int64_t num_rows_ = 0;
  int64_t row_bytes_ = 0;
  int64_t lines_ = 0;
  int64_t row_ = 0;
  int64_t at_ = 0;
};
// Terms of a sum between two steps.
constexpr int64_t kStepTerms = 16;

BALLAST_INLINE int64_t step_end(int64_t begin, int64_t end) {
  return begin + kStepTerms < end ? begin + kStepTerms : end;
}

// The positions of the span at `begin`; 0 after the last one.
BALLAST_INLINE int64_t span_size(int64_t num_positions, int64_t begin) {
  const int64_t rest = num_positions - begin;
  return rest < 0 ? 0 : rest < kSpanPositions ? rest : kSpanPositions;
}

// The rows of `size` positions as floats: in the cache, or widened into the scratch memory, where they remain
// until the next call.
BALLAST_INLINE void span_floats(const PositionRows& in, const void* const* rows, int64_t size, int64_t width,
                                const float** floats) {
  if (!in.are_halves) {
    for (int64_t p = 0; p < size; ++p) floats[p] = static_cast<const float*>(rows[p]);
    return;
  }
  for (int64_t p = 0; p < size; ++p) {
    float* row = in.widened + p * in.widened_stride;
    widen(static_cast<const uint8_t*>(rows[p]), width, row);
    floats[p] = row;
  }
}

// Scores of kItems positions from `position`, for kVectors vectors of rows from `row`.
template <int kVectors, int kItems>
BALLAST_INLINE void score_block(const AttentionStretch& in, int64_t row, const float* const* keys,
                                float* scores, NextRows& next) {
  const int64_t num_rows = in.num_rows;
  const int64_t key_width = in.key_width;
  const float* query = in.query + row;
  const float* entries[kItems];
#pragma GCC unroll 16
  for (int i = 0; i < kItems; ++i) entries[i] = keys[i];
  Floats sums[kItems][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kItems; ++i) {
    for (int v = 0; v < kVectors; ++v) sums[i][v] = zero_floats();
  }
  for (int64_t first = 0; first < key_width; first += kStepTerms) {
    next.step();
    for (int64_t k = first; k < step_end(first, key_width); ++k, query += num_rows) {
      Floats queries[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) queries[v] = load_floats(query + v * kVectorRows);
#pragma GCC unroll 16
      for (int i = 0; i < kItems; ++i) {
        const Floats entry = broadcast_float(entries[i][k]);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) sums[i][v] = multiply_add(entry, queries[v], sums[i][v]);
      }
    }
  }
  const Floats scale = broadcast_float(in.scale);
#pragma GCC unroll 16
  for (int i = 0; i < kItems; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      store_floats(scores + i * num_rows + row + v * kVectorRows, multiply(sums[i][v], scale));
    }
  }
}

// values = values * correction + the weighted sum of kItems value entries from `dim`.
template <int kVectors, int kItems>
BALLAST_INLINE void value_block(const AttentionStretch& in, int64_t row, const float* const* entries,
                                int64_t size, int64_t dim, bool is_first, const float* correction,
                                float* values, NextRows& next) {
  const int64_t num_rows = in.num_rows;
  const float* weights = in.scores + row;
  float* out = values + dim * num_rows + row;
  Floats sums[kItems][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kItems; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      sums[i][v] = is_first ? zero_floats()
                            : multiply(load_floats(out + i * num_rows + v * kVectorRows),
                                       load_floats(correction + row + v * kVectorRows));
    }
  }
  for (int64_t first = 0; first < size; first += kStepTerms) {
    next.step();
    for (int64_t p = first; p < step_end(first, size); ++p, weights += num_rows) {
      const float* value = entries[p] + dim;
      Floats row_weights[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) row_weights[v] = load_floats(weights + v * kVectorRows);
#pragma GCC unroll 16
      for (int i = 0; i < kItems; ++i) {
        const Floats entry = broadcast_float(value[i]);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) sums[i][v] = multiply_add(entry, row_weights[v], sums[i][v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kItems; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) store_floats(out + i * num_rows + v * kVectorRows, sums[i][v]);
  }
}

// Divides `total` items into blocks of kMost, then blocks of four, then single items.
template <int kVectors, int kMost>
void score_positions(const AttentionStretch& in, int64_t row, const float* const* keys, int64_t total,
                     NextRows& next) {
  int64_t i = 0;
  for (; i + kMost <= total; i += kMost) {
    score_block<kVectors, kMost>(in, row, keys + i, in.scores + i * in.num_rows, next);
  }
  for (; i + 4 <= total; i += 4)
    score_block<kVectors, 4>(in, row, keys + i, in.scores + i * in.num_rows, next);
  for (; i < total; ++i) score_block<kVectors, 1>(in, row, keys + i, in.scores + i * in.num_rows, next);
}

template <int kVectors, int kMost>
void add_values(const AttentionStretch& in, int64_t row, const float* const* entries, int64_t size,
                bool is_first, const float* correction, float* values, NextRows& next) {
  int64_t dim = 0;
  for (; dim + kMost <= in.value_width; dim += kMost) {
    value_block<kVectors, kMost>(in, row, entries, size, dim, is_first, correction, values, next);
  }
  for (; dim + 4 <= in.value_width; dim += 4) {
    value_block<kVectors, 4>(in, row, entries, size, dim, is_first, correction, values, next);
  }
  for (; dim < in.value_width; ++dim) {
    value_block<kVectors, 1>(in, row, entries, size, dim, is_first, correction, values, next);
  }
}

// Hides the positions of a span that a row does not see.
BALLAST_INLINE void hide_unseen(const AttentionStretch& in, int64_t num_live, int64_t begin, int64_t size) {
  const Floats hidden = broadcast_float(-__builtin_inff());
  for (int64_t p = 0; p < size; ++p) {
    const Floats position = broadcast_float(static_cast<float>(begin + p));
    for (int64_t row = 0; row < num_live; row += kVectorRows) {
      float* score = in.scores + p * in.num_rows + row;
      store_floats(score, where_less(position, load_floats(in.num_seen + row), load_floats(score), hidden));
    }
  }
}

// Hides the positions of a span that lie before a row's window.
BALLAST_INLINE void hide_passed(const AttentionStretch& in, int64_t num_live, int64_t begin, int64_t size) {
  const Floats hidden = broadcast_float(-__builtin_inff());
  for (int64_t p = 0; p < size; ++p) {
    const Floats position = broadcast_float(static_cast<float>(begin + p));
    for (int64_t row = 0; row < num_live; row += kVectorRows) {
      float* score = in.scores + p * in.num_rows + row;
      store_floats(score, where_less(position, load_floats(in.first_seen + row), hidden, load_floats(score)));
    }
  }
}

// The begin of the first span that any row sees. A span that a row does not see leaves its state as it is,
// bit for bit, so a row's state does not depend on the other rows.
BALLAST_INLINE int64_t first_span(const AttentionStretch& in) {
  if (in.first_seen == nullptr || in.fewest_passed < 1.0f) return 0;
  return static_cast<int64_t>(in.fewest_passed) / kSpanPositions * kSpanPositions;
}

// Converts the scores of a span to weights. Earlier weights have to be multiplied by `correction`.
BALLAST_INLINE void weigh(const AttentionStretch& in, int64_t num_live, int64_t size,
                          const AttentionState& state, float* correction) {
  for (int64_t row = 0; row < num_live; row += kVectorRows) {
    float* scores = in.scores + row;
    const Floats old_maximum = load_floats(state.maximum + row);
    Floats maximum = old_maximum;
    for (int64_t p = 0; p < size; ++p) maximum = larger(maximum, load_floats(scores + p * in.num_rows));
    const Floats kept = exp_of_negative(subtract(old_maximum, maximum));
    Floats sum = multiply(load_floats(state.sum + row), kept);
    for (int64_t p = 0; p < size; ++p) {
      const Floats weight = exp_of_negative(subtract(load_floats(scores + p * in.num_rows), maximum));
      store_floats(scores + p * in.num_rows, weight);
      sum = add(sum, weight);
    }
    store_floats(state.maximum + row, maximum);
    store_floats(state.sum + row, sum);
    store_floats(correction + row, kept);
  }
}

// The state of no position. Vectors of padding rows keep it.
BALLAST_INLINE void begin_state(const AttentionStretch& in, int64_t num_live, const AttentionState& state) {
  for (int64_t row = 0; row < in.num_rows; ++row) {
    state.maximum[row] = kNoMaximum;
    state.sum[row] = 0.0f;
  }
  for (int64_t dim = 0; dim < in.value_width; ++dim) {
    for (int64_t row = num_live; row < in.num_rows; ++row) state.values[dim * in.num_rows + row] = 0.0f;
  }
}

// The rows that hold at least one of a stretch's, rounded up to vectors.
BALLAST_INLINE int64_t vector_rows(int64_t num_live) {
  return (num_live + kVectorRows - 1) / kVectorRows * kVectorRows;
}

void attend_stretch(const AttentionStretch& in, const AttentionState& state) {
  constexpr int64_t kPairRows = 2 * kVectorRows;
  // One more line of rows after the scores of the span.
  float* correction = in.scores + kSpanPositions * in.num_rows;
  const int64_t num_live = vector_rows(in.num_live);
  begin_state(in, num_live, state);
  const bool is_shared = in.values == nullptr;
  const int64_t number_bytes = in.keys.are_halves ? 2 : 4;
  // Computations of the first rows alone: those of others find the lines there.
  const int64_t key_steps = kSpanPositions * in.key_width / kStepTerms / kSingleItems;
  const int64_t value_steps = kSpanPositions * in.value_width / kStepTerms / kSingleItems;
  const int64_t first = first_span(in);
  for (int64_t begin = first; begin < in.num_positions; begin += kSpanPositions) {
    const int64_t size = span_size(in.num_positions, begin);
    NextRows next_values,
        next_keys(in.keys.rows + begin + kSpanPositions, span_size(in.num_positions, begin + kSpanPositions),
                  number_bytes * in.key_width, value_steps);
    if (!is_shared) {
      next_values = NextRows(in.values + begin, size, number_bytes * in.value_width, key_steps);
    }
    const float* entries[kSpanPositions];
    span_floats(in.keys, in.keys.rows + begin, size, in.key_width, entries);
    int64_t row = 0;
    for (; row + kPairRows <= num_live; row += kPairRows)
      score_positions<2, kPairItems>(in, row, entries, size, next_values);
    for (; row < num_live; row += kVectorRows)
      score_positions<1, kSingleItems>(in, row, entries, size, next_values);
    if (in.fewest_seen < static_cast<float>(begin + size)) hide_unseen(in, num_live, begin, size);
    if (in.first_seen != nullptr && in.most_passed > static_cast<float>(begin))
      hide_passed(in, num_live, begin, size);
    weigh(in, num_live, size, state, correction);
    if (!is_shared) span_floats(in.keys, in.values + begin, size, in.value_width, entries);
    const bool is_first = begin == first;
    row = 0;
    for (; row + kPairRows <= num_live; row += kPairRows) {
      add_values<2, kPairItems>(in, row, entries, size, is_first, correction, state.values, next_keys);
    }
    for (; row < num_live; row += kVectorRows) {
      add_values<1, kSingleItems>(in, row, entries, size, is_first, correction, state.values, next_keys);
    }
  }
}

void merge_states(int64_t num_rows, int64_t value_width, const AttentionState& next,
                  const AttentionState& state) {
  for (int64_t row = 0; row < num_rows; row += kVectorRows) {
    const Floats old_maximum = load_floats(state.maximum + row);
    const Floats next_maximum = load_floats(next.maximum + row);
    const Floats maximum = larger(old_maximum, next_maximum);
    const Floats kept = exp_of_negative(subtract(old_maximum, maximum));
    const Floats taken = exp_of_negative(subtract(next_maximum, maximum));
    store_floats(state.maximum + row, maximum);
    store_floats(state.sum + row, multiply_add(load_floats(next.sum + row), taken,
                                               multiply(load_floats(state.sum + row), kept)));
    float* values = state.values + row;
    const float* next_values = next.values + row;
    for (int64_t dim = 0; dim < value_width; ++dim, values += num_rows, next_values += num_rows) {
      store_floats(values,
                   multiply_add(load_floats(next_values), taken, multiply(load_floats(values), kept)));
    }
  }
}

void index_stretch(const IndexStretch& in, float* scores) {
  constexpr int64_t kPairRows = 2 * kVectorRows;
  AttentionStretch products{};
  products.query = in.query;
  products.num_rows = in.num_rows;
  products.key_width = in.key_width;
  products.scale = 1.0f;
  products.scores = in.products;
  for (int64_t begin = 0; begin < in.num_positions; begin += kSpanPositions) {
    const int64_t size = span_size(in.num_positions, begin);
    const float* keys[kSpanPositions];
    span_floats(in.keys, in.keys.rows + begin, size, in.key_width, keys);
    NextRows next(in.keys.rows + begin + kSpanPositions, span_size(in.num_positions, begin + kSpanPositions),
                  (in.keys.are_halves ? 2 : 4) * in.key_width, in.key_width / kStepTerms);
    int64_t row = 0;
    for (; row + kPairRows <= in.num_rows; row += kPairRows)
      score_positions<2, kPairItems>(products, row, keys, size, next);
    for (; row < in.num_rows; row += kVectorRows)
      score_positions<1, kSingleItems>(products, row, keys, size, next);
    for (int64_t p = 0; p < size; ++p) {
      Floats sums = zero_floats();
      for (row = 0; row < in.num_rows; row += kVectorRows) {
        const Floats product = larger(load_floats(in.products + p * in.num_rows + row), zero_floats());
        sums = multiply_add(product, load_floats(in.weights + row), sums);
      }
      float lanes[kVectorRows];
      store_floats(lanes, sums);
      for (int half = kVectorRows / 2; half > 0; half /= 2) {
        for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
      }
      scores[begin + p] = lanes[0];
    }
  }
}

}  // namespace
}  // namespace ballast
