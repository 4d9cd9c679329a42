#include "sampling/choice.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/index_range.h"
#include "base/scratch.h"
#include "sampling/ranking.h"
#include "sampling/slices.h"

namespace ballast {
namespace {

constexpr double kOctavesPerNat = 1.4426950408889634;  // 1 / ln 2

// The first that is the highest, or that is NaN.
template <class Logit>
int32_t place_of_peak(const Logit* row, int64_t n, const Peaks& peaks, const Logit* block_peaks) {
  if (peaks.has_nan) {
    return static_cast<int32_t>(std::find_if(row, row + n, [](Logit logit) { return logit != logit; }) - row);
  }
  const Logit highest = static_cast<Logit>(peaks.highest);
  const int64_t begin =
      (std::find(block_peaks, block_peaks + n / kLogitBlock, highest) - block_peaks) * kLogitBlock;
  return static_cast<int32_t>(std::find(row + begin, row + n, highest) - row);
}

// The first running sum above the threshold; where rounding leaves none, the last weight that is not 0.
// `walked` becomes the sum before it.
int64_t first_above(const double* weights, int64_t n, double threshold, double* walked) {
  int64_t found = 0;
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    if (weights[i] == 0.0) continue;
    found = i;
    *walked = sum;
    sum += weights[i];
    if (sum > threshold) break;
  }
  return found;
}

template <class Logit>
int32_t choose_by_id(const LogitKernels<Logit>& kernels, const Logit* row, int64_t n, const RowSlices& slices,
                     const Weighing& weighing, double uniform) {
  const Chunks blocks(n, kLogitBlock);
  const Scratch<double> sums(blocks.count());
  const double total = sum_weights(kernels, row, slices, weighing, sums.get());
  double walked = 0.0;
  const double threshold = uniform * total;
  const IndexRange block = blocks[first_above(sums.get(), blocks.count(), threshold, &walked)];
  double weights[kLogitBlock];
  kernels.weigh(row + block.begin, block.size(), weighing, weights);
  double walked_in_block = 0.0;
  return static_cast<int32_t>(block.begin +
                              first_above(weights, block.size(), threshold - walked, &walked_in_block));
}

// The depth that holds all of the nucleus: tokens that lie deeper have together less than half of 1 - top_p,
// as the most likely one alone weighs 1.
double nucleus_depth(double top_p, int64_t n) {
  return std::log2(2.0 * static_cast<double>(n) / (1.0 - top_p));
}

// None of the `count` highest logits is below this: as many blocks have a peak that is not.
template <class Logit>
Logit bound_of_highest(const Logit* block_peaks, int64_t num_blocks, int64_t count) {
  if (count > num_blocks) return -std::numeric_limits<Logit>::infinity();
  const Scratch<Logit> peaks(num_blocks);
  Logit* const end = std::copy(block_peaks, block_peaks + num_blocks, peaks.get());
  Logit* const last = peaks.get() + (count - 1);
  std::nth_element(peaks.get(), last, end, std::greater<Logit>());
  return *last;
}

template <class Logit>
int32_t choose_by_rank(const SamplingKernels& kernels, const LogitKernels<Logit>& row_kernels,
                       const Logit* row, int64_t n, const RowSlices& slices, const Logit* block_peaks,
                       const Selection& selection, Weighing weighing, double lowest, double uniform) {
  const bool is_counted = selection.top_k > 0 && selection.top_k < n;
  if (is_counted) {
    const int64_t num_blocks = Chunks(n, kLogitBlock).count();
    const auto bound = static_cast<double>(bound_of_highest(block_peaks, num_blocks, selection.top_k));
    lowest = std::max(lowest, bound);
  }
  double range = std::min(weighing.deepest, (weighing.highest - lowest) * weighing.octaves_per_logit);
  if (is_counted) {
    weighing.deepest = range;
  } else {
    range = std::min(range, nucleus_depth(selection.top_p, n));
  }
  const Ranking<Logit> ranking(kernels, row_kernels, row, n, slices, block_peaks, weighing, range);
  const Prefix all = ranking.all();
  RankedToken last{-1, all};
  if (is_counted && selection.top_k < all.count) last = ranking.find(PrefixGoal::count(selection.top_k));
  if (selection.top_p < 1.0) {
    const RankedToken border = ranking.find(PrefixGoal::weight(selection.top_p * last.through.weight));
    if (last.token < 0 || border.through.count < last.through.count) last = border;
  }
  const RankedToken drawn = ranking.find(PrefixGoal::more_than(uniform * last.through.weight));
  return last.token >= 0 && drawn.through.count > last.through.count ? last.token : drawn.token;
}

}  // namespace

bool is_worth_dividing(const Selection& selection, int64_t n) {
  if (n <= kSliceLogits || selection.temperature == 0.0) return false;
  // With few tokens to rank, hardly any block is weighed.
  return selection.top_k <= 0 || selection.top_k > Chunks(n, kLogitBlock).count();
}

template <class Logit>
Choice choose(const SamplingKernels& kernels, const LogitKernels<Logit>& row_kernels, const Logit* row,
              int64_t n, const Selection& selection, double uniform, ThreadPool* pool) {
  const RowSlices slices(n, pool);
  const Scratch<Logit> block_peaks(Chunks(n, kLogitBlock).count());
  const Peaks peaks = find_peaks(row_kernels, row, slices, block_peaks.get());
  const int32_t best = place_of_peak(row, n, peaks, block_peaks.get());
  const double highest = static_cast<double>(row[best]);
  if (!std::isfinite(highest) || selection.temperature == 0.0) return {best, highest};
  Weighing weighing{highest, kOctavesPerNat / selection.temperature, kDeepest};
  // 0 times infinity is no number.
  weighing.octaves_per_logit = std::min(weighing.octaves_per_logit, std::numeric_limits<double>::max());
  if (selection.min_p > 0.0) weighing.deepest = std::clamp(-std::log2(selection.min_p), 0.0, kDeepest);
  const bool is_ranked = selection.top_p < 1.0 || (selection.top_k > 0 && selection.top_k < n);
  return {is_ranked ? choose_by_rank(kernels, row_kernels, row, n, slices, block_peaks.get(), selection,
                                     weighing, peaks.lowest, uniform)
                    : choose_by_id(row_kernels, row, n, slices, weighing, uniform),
          highest};
}

template Choice choose(const SamplingKernels&, const LogitKernels<float>&, const float*, int64_t,
                       const Selection&, double, ThreadPool*);
template Choice choose(const SamplingKernels&, const LogitKernels<double>&, const double*, int64_t,
                       const Selection&, double, ThreadPool*);

}  // namespace ballast
