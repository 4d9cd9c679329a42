#include "sampling/choice.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/index_range.h"

namespace ballast {
namespace {

// The index of the first NaN, or, if there is none, of the first logit that equals the highest.
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

// The index at which the running sum first exceeds the threshold. If rounding keeps every sum below it, the
// index of the last weight other than 0. Sets `walked` to the sum before that index.
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

// A depth that contains the whole nucleus: the most likely token has weight 1, so all deeper tokens together
// have less than half of 1 - top_p of the total weight.
double nucleus_depth(double top_p, int64_t n) {
  return std::log2(2.0 * static_cast<double>(n) / (1.0 - top_p));
}

// A lower bound of the `count` highest logits: at least `count` blocks have a peak at or above it.
template <class Logit>
Logit bound_of_highest(const Logit* block_peaks, int64_t num_blocks, int64_t count) {
  if (count > num_blocks) return -std::numeric_limits<Logit>::infinity();
  const Scratch<Logit> peaks(num_blocks);
  Logit* const end = std::copy(block_peaks, block_peaks + num_blocks, peaks.get());
  Logit* const last = peaks.get() + (count - 1);
  std::nth_element(peaks.get(), last, end, std::greater<Logit>());
  return *last;
}

}  // namespace

bool is_worth_dividing(const Selection& selection, int64_t n) {
  if (n <= kSliceLogits || selection.temperature == 0.0) return false;
  // With a small top_k, few blocks need weights.
  return selection.top_k <= 0 || selection.top_k > Chunks(n, kLogitBlock).count();
}

template <class Logit>
RowChoice<Logit>::RowChoice(const SamplingKernels& kernels, const LogitKernels<Logit>& row_kernels,
                            const Logit* row, int64_t n, const Selection& selection, double uniform)
    : kernels_(kernels),
      row_kernels_(row_kernels),
      row_(row),
      n_(n),
      selection_(selection),
      uniform_(uniform),
      slices_(n, nullptr),
      slice_peaks_(slices_.count()),
      block_peaks_(Chunks(n, kLogitBlock).count()) {}

template <class Logit>
void RowChoice<Logit>::find_peaks(int64_t slice) const {
  const IndexRange range = slices_[slice];
  slice_peaks_.get()[slice] =
      row_kernels_.peaks(row_ + range.begin, range.size(), block_peaks_.get() + range.begin / kLogitBlock);
}

template <class Logit>
bool RowChoice<Logit>::begin() {
  const Peaks peaks = merged(slice_peaks_.get(), slices_.count());
  best_.token = place_of_peak(row_, n_, peaks, block_peaks_.get());
  best_.highest = static_cast<double>(row_[best_.token]);
  if (!std::isfinite(best_.highest) || selection_.temperature == 0.0) return false;
  // Avoids infinity, because 0 times infinity is NaN.
  const double octaves =
      std::min(kOctavesPerNat / selection_.temperature, std::numeric_limits<double>::max());
  weighing_ = {best_.highest, octaves, kDeepest};
  if (selection_.min_p > 0.0) weighing_.deepest = std::clamp(-std::log2(selection_.min_p), 0.0, kDeepest);
  const int64_t num_blocks = Chunks(n_, kLogitBlock).count();
  if (selection_.top_p >= 1.0 && !is_counted()) {
    block_sums_ = Scratch<double>(num_blocks);
    return true;
  }
  double lowest = peaks.lowest;
  if (is_counted()) {
    const Logit bound = bound_of_highest(block_peaks_.get(), num_blocks, selection_.top_k);
    lowest = std::max(lowest, static_cast<double>(bound));
  }
  double range = std::min(weighing_.deepest, (weighing_.highest - lowest) * weighing_.octaves_per_logit);
  if (is_counted()) {
    weighing_.deepest = range;
  } else {
    range = std::min(range, nucleus_depth(selection_.top_p, n_));
  }
  ranking_.emplace(kernels_, row_kernels_, row_, n_, block_peaks_.get(), weighing_, range);
  return true;
}

template <class Logit>
void RowChoice<Logit>::weigh(int64_t slice) const {
  if (ranking_) return ranking_->fill(slice);
  const IndexRange range = slices_[slice];
  row_kernels_.sum_blocks(row_ + range.begin, range.size(), weighing_,
                          block_sums_.get() + range.begin / kLogitBlock);
}

template <class Logit>
Choice RowChoice<Logit>::finish() const {
  if (ranking_) return {draw_by_rank(), best_.highest};
  if (block_sums_.get() != nullptr) return {draw_by_id(), best_.highest};
  return best_;
}

template <class Logit>
int32_t RowChoice<Logit>::draw_by_rank() const {
  ranking_->merge();
  const RankedToken last = last_by_rank();
  const RankedToken drawn = ranking_->find(PrefixGoal::more_than(uniform_ * last.through.weight));
  return last.token >= 0 && drawn.through.count > last.through.count ? last.token : drawn.token;
}

template <class Logit>
RankedToken RowChoice<Logit>::last_by_rank() const {
  const Prefix all = ranking_->all();
  RankedToken last{-1, all};
  if (is_counted() && selection_.top_k < all.count) {
    last = ranking_->find(PrefixGoal::count(selection_.top_k));
  }
  if (selection_.top_p < 1.0) {
    const RankedToken border = ranking_->find(PrefixGoal::weight(selection_.top_p * last.through.weight));
    if (last.token < 0 || border.through.count < last.through.count) last = border;
  }
  return last;
}

template <class Logit>
int32_t RowChoice<Logit>::draw_by_id() const {
  const Chunks blocks(n_, kLogitBlock);
  const double* const sums = block_sums_.get();
  double walked = 0.0;
  const double threshold = uniform_ * sum_of_blocks(sums, slices_);
  const IndexRange block = blocks[first_above(sums, blocks.count(), threshold, &walked)];
  double weights[kLogitBlock];
  row_kernels_.weigh(row_ + block.begin, block.size(), weighing_, weights);
  double walked_in_block = 0.0;
  return static_cast<int32_t>(block.begin +
                              first_above(weights, block.size(), threshold - walked, &walked_in_block));
}

template <class Logit>
Choice choose(const SamplingKernels& kernels, const LogitKernels<Logit>& row_kernels, const Logit* row,
              int64_t n, const Selection& selection, double uniform) {
  RowChoice<Logit> choice(kernels, row_kernels, row, n, selection, uniform);
  for (int64_t slice = 0; slice < choice.num_slices(); ++slice) choice.find_peaks(slice);
  if (choice.begin()) {
    for (int64_t slice = 0; slice < choice.num_slices(); ++slice) choice.weigh(slice);
  }
  return choice.finish();
}

template class RowChoice<float>;
template class RowChoice<double>;
template Choice choose(const SamplingKernels&, const LogitKernels<float>&, const float*, int64_t,
                       const Selection&, double);
template Choice choose(const SamplingKernels&, const LogitKernels<double>&, const double*, int64_t,
                       const Selection&, double);

}  // namespace ballast
