#include "ops/short_conv.h"

#include <algorithm>
#include <vector>

#include "base/index_range.h"
#include "ops/norm.h"

namespace ballast {
namespace {

constexpr int64_t kTaskTokens = 8;
constexpr int64_t kTaskChannels = 1024;

// The input of a row's token, counted from the row's first; of one before that, from the state that it reads.
// Null: zeros.
const float* input_of(const ConvShape& shape, const float* x, const StateRows& rows, const float* states,
                      int64_t row, int64_t token) {
  if (token >= 0) return x + (rows.token_indptr[row] + token) * shape.channels;
  if (rows.slot_in(row) == kNullState) return nullptr;
  return states + rows.slot_in(row) * shape.state_floats() + (token + shape.taps - 1) * shape.channels;
}

void convolve(const ConvShape& shape, const float* weights, const float* x, const StateRows& rows,
              const float* states, int64_t row, int64_t token, IndexRange channels, float* out) {
  std::fill(out + channels.begin, out + channels.end, 0.0f);
  for (int64_t tap = 0; tap < shape.taps; ++tap) {
    const float* input = input_of(shape, x, rows, states, row, token - shape.taps + 1 + tap);
    if (input == nullptr) continue;
    const float* weight = weights + tap * shape.channels;
    for (int64_t c = channels.begin; c < channels.end; ++c) out[c] += weight[c] * input[c];
  }
}

// Of the states that a row leaves, the channels. Inputs move to earlier places only, so a state may be
// replaced in place.
void leave_states(const ConvShape& shape, const float* x, const StateRows& rows, float* states, int64_t row,
                  IndexRange channels) {
  rows.for_each_left(row, [&](int64_t end, int32_t slot) {
    if (slot == kNullState) return;
    float* to = states + slot * shape.state_floats();
    for (int64_t i = 0; i < shape.taps - 1; ++i, to += shape.channels) {
      const float* input = input_of(shape, x, rows, states, row, end - shape.taps + 1 + i);
      if (input == nullptr) {
        std::fill(to + channels.begin, to + channels.end, 0.0f);
      } else {
        std::copy(input + channels.begin, input + channels.end, to + channels.begin);
      }
    }
  });
}

}  // namespace

void short_conv(ThreadPool& pool, const Kernels* kernels, const ConvShape& shape, const float* weights,
                const float* x, const StateRows& rows, float* states, float* out) {
  static const std::vector<float> ones(kTaskChannels, 1.0f);
  const int64_t num_tokens = rows.token_indptr[rows.num_rows];
  const Chunks tokens(num_tokens, kTaskTokens);
  const Chunks channels(shape.channels, kTaskChannels);
  pool.parallel_for(tokens.count() * channels.count(), [&](int64_t task) {
    const IndexRange own = channels[task % channels.count()];
    const IndexRange some = tokens[task / channels.count()];
    const int32_t* ends = rows.token_indptr + 1;
    int64_t row = std::upper_bound(ends, ends + rows.num_rows, some.begin) - ends;
    for (int64_t token = some.begin; token < some.end; ++token) {
      while (token >= rows.token_indptr[row + 1]) ++row;
      float* to = out + token * shape.channels;
      convolve(shape, weights, x, rows, states, row, token - rows.token_indptr[row], own, to);
      float* sums = to + own.begin;
      if (kernels == nullptr) {
        silu_mul(sums, ones.data(), own.end - own.begin, sums);
      } else {
        kernels->silu_mul(sums, ones.data(), own.end - own.begin, sums);
      }
    }
  });
  // After all tokens: they read the states that are replaced here.
  pool.parallel_for(rows.num_rows * channels.count(), [&](int64_t task) {
    leave_states(shape, x, rows, states, task / channels.count(), channels[task % channels.count()]);
  });
}

}  // namespace ballast
