#include "ops/recurrent/short_conv.h"

#include <algorithm>
#include <vector>

#include "base/index_range.h"
#include "ops/pointwise.h"

namespace ballast {
namespace {

constexpr int64_t kTaskTokens = 8;
constexpr int64_t kTaskChannels = 1024;

// Of most models. Their sums take one pass over the channels.
constexpr int64_t kUsualTaps = 4;

// The input of a row's token, counted from the row's first; of one before that, from the state that it reads.
// Null: zeros.
const float* input_of(const ConvShape& shape, const float* x, const StateRows& rows, const float* states,
                      int64_t row, int64_t token) {
  if (token >= 0) return x + (rows.token_indptr[row] + token) * shape.channels;
  if (rows.slot_in(row) == kNullState) return nullptr;
  return states + rows.slot_in(row) * shape.state_floats() + (token + shape.reach()) * shape.channels;
}

// sums = weights * inputs, summed over kUsualTaps taps in their order; the weights of taps are a stride
// apart.
void sum_usual_taps(const float* weights, int64_t stride, const float* const* inputs, int64_t count,
                    float* __restrict sums) {
  const float *w0 = weights, *w1 = w0 + stride, *w2 = w1 + stride, *w3 = w2 + stride;
  const float *x0 = inputs[0], *x1 = inputs[1], *x2 = inputs[2], *x3 = inputs[3];
  for (int64_t c = 0; c < count; ++c) {
    sums[c] = ((w0[c] * x0[c] + w1[c] * x1[c]) + w2[c] * x2[c]) + w3[c] * x3[c];
  }
}

void convolve(const ConvShape& shape, const float* weights, const float* x, const StateRows& rows,
              const float* states, int64_t row, int64_t token, IndexRange channels, float* sums) {
  static const std::vector<float> zeros(kTaskChannels, 0.0f);
  const auto input = [&](int64_t tap) {
    const float* found = input_of(shape, x, rows, states, row, token - shape.reach() + tap * shape.dilation);
    return found == nullptr ? zeros.data() : found + channels.begin;
  };
  const int64_t count = channels.size();
  if (shape.taps == kUsualTaps) {
    const float* const inputs[kUsualTaps] = {input(0), input(1), input(2), input(3)};
    sum_usual_taps(weights + channels.begin, shape.channels, inputs, count, sums);
    return;
  }
  std::fill_n(sums, count, 0.0f);
  for (int64_t tap = 0; tap < shape.taps; ++tap) {
    const float* values = input(tap);
    const float* weight = weights + tap * shape.channels + channels.begin;
    for (int64_t c = 0; c < count; ++c) sums[c] += weight[c] * values[c];
  }
}

// Of the states that a row leaves, the channels. Inputs move to earlier places only, so a state may be
// replaced in place.
void leave_states(const ConvShape& shape, const float* x, const StateRows& rows, float* states, int64_t row,
                  IndexRange channels) {
  rows.for_each_left(row, [&](int64_t end, int32_t slot) {
    if (slot == kNullState) return;
    float* to = states + slot * shape.state_floats();
    for (int64_t i = 0; i < shape.reach(); ++i, to += shape.channels) {
      const float* input = input_of(shape, x, rows, states, row, end - shape.reach() + i);
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
      float* sums = out + token * shape.channels + own.begin;
      convolve(shape, weights, x, rows, states, row, token - rows.token_indptr[row], own, sums);
      if (kernels == nullptr) {
        silu_mul(sums, ones.data(), own.size(), sums);
      } else {
        kernels->silu_mul(sums, ones.data(), own.size(), sums);
      }
    }
  });
  // After all tokens: they read the states that are replaced here.
  pool.parallel_for(rows.num_rows * channels.count(), [&](int64_t task) {
    leave_states(shape, x, rows, states, task / channels.count(), channels[task % channels.count()]);
  });
}

}  // namespace ballast
