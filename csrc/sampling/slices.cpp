#include "sampling/slices.h"

#include <algorithm>
#include <limits>

#include "base/scratch.h"

namespace ballast {

Peaks merged(const Peaks* slices, int64_t num) {
  Peaks peaks{-std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity(), false};
  for (int64_t index = 0; index < num; ++index) {
    peaks.highest = std::max(peaks.highest, slices[index].highest);
    peaks.lowest = std::min(peaks.lowest, slices[index].lowest);
    peaks.has_nan = peaks.has_nan || slices[index].has_nan;
  }
  return peaks;
}

double sum_of_blocks(const double* sums, const RowSlices& slices) {
  double total = 0.0;
  for (int64_t index = 0; index < slices.count(); ++index) {
    const Chunks blocks(slices[index].size(), kLogitBlock);
    const double* const of_slice = sums + slices[index].begin / kLogitBlock;
    for (int64_t i = 0; i < blocks.count(); ++i) total += of_slice[i];
  }
  return total;
}

template <class Logit>
Peaks find_peaks(const LogitKernels<Logit>& kernels, const Logit* row, const RowSlices& slices,
                 Logit* block_peaks) {
  const Scratch<Peaks> found(slices.count());
  slices.for_each([&](int64_t index, IndexRange range) {
    found.get()[index] =
        kernels.peaks(row + range.begin, range.size(), block_peaks + range.begin / kLogitBlock);
  });
  return merged(found.get(), slices.count());
}

template <class Logit>
double sum_weights(const LogitKernels<Logit>& kernels, const Logit* row, const RowSlices& slices,
                   const Weighing& weighing, double* sums) {
  slices.for_each([&](int64_t, IndexRange range) {
    kernels.sum_blocks(row + range.begin, range.size(), weighing, sums + range.begin / kLogitBlock);
  });
  return sum_of_blocks(sums, slices);
}

template Peaks find_peaks(const LogitKernels<float>&, const float*, const RowSlices&, float*);
template Peaks find_peaks(const LogitKernels<double>&, const double*, const RowSlices&, double*);
template double sum_weights(const LogitKernels<float>&, const float*, const RowSlices&, const Weighing&,
                            double*);
template double sum_weights(const LogitKernels<double>&, const double*, const RowSlices&, const Weighing&,
                            double*);

}  // namespace ballast
