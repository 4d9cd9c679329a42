#include "sampling/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/index_range.h"
#include "base/scratch.h"
#include "sampling/slices.h"

namespace ballast {
namespace {

// Ids of the `num` largest values in descending order; equal values by ascending id.
void find_largest(const float* row, int64_t n, const float* block_peaks, int64_t num, int32_t* ids) {
  int64_t found = 0;
  const Chunks blocks(n, kLogitBlock);
  for (int64_t block = 0; block < blocks.count(); ++block) {
    if (found == num && !(block_peaks[block] > row[ids[num - 1]])) continue;
    for (int64_t id = blocks[block].begin; id < blocks[block].end; ++id) {
      if (found == num && !(row[id] > row[ids[num - 1]])) continue;
      // Insert it after equal values, which have lower ids. If `ids` is full, drop the last one.
      int32_t* const end = ids + found;
      int32_t* const at = std::upper_bound(ids, end, row[id],
                                           [row](float value, int32_t other) { return value > row[other]; });
      found = std::min(found + 1, num);
      std::copy_backward(at, std::min(end, ids + num - 1), ids + found);
      *at = static_cast<int32_t>(id);
    }
  }
}

}  // namespace

LogProbability find_logprobs(const SamplingKernels& kernels, const float* row, int64_t n, int32_t token,
                             int64_t num_top, int32_t* top_tokens, double* top_logprobs, ThreadPool* pool) {
  const RowSlices slices(n, pool);
  const Chunks blocks(n, kLogitBlock);
  const Scratch<float> block_peaks(blocks.count());
  const Peaks peaks = find_peaks(kernels.floats, row, slices, block_peaks.get());
  if (peaks.has_nan) return {std::numeric_limits<double>::quiet_NaN(), 0.0};
  if (!std::isfinite(peaks.highest)) return {peaks.highest, 0.0};
  const Scratch<double> sums(blocks.count());
  const Weighing weighing{peaks.highest, kOctavesPerNat, kDeepest};
  const double total = sum_weights(kernels.floats, row, slices, weighing, sums.get());
  const double log_sum = peaks.highest + std::log(total);
  if (num_top > 0) find_largest(row, n, block_peaks.get(), num_top, top_tokens);
  for (int64_t i = 0; i < num_top; ++i) top_logprobs[i] = static_cast<double>(row[top_tokens[i]]) - log_sum;
  return {peaks.highest, static_cast<double>(row[token]) - log_sum};
}

}  // namespace ballast
