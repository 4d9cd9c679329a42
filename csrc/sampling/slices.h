// Divides a row of logits into slices for passes over it.
#pragma once

#include <cstdint>

#include "base/index_range.h"
#include "cpu/sampling.h"
#include "threads/thread_pool.h"

namespace ballast {

// Logits per slice. The results of slices are merged in the order of slices, so that no bit of the result
// depends on the number of threads or on their timing.
constexpr int64_t kSliceLogits = 32 * kLogitBlock;

// The slices of a row of n logits, and the threads that process them.
class RowSlices {
 public:
  // Uses the pool's threads, the caller among them; null: only the calling thread.
  RowSlices(int64_t n, ThreadPool* pool) : slices_(n, kSliceLogits), pool_(pool) {}

  int64_t count() const { return slices_.count(); }
  IndexRange operator[](int64_t index) const { return slices_[index]; }

  // Calls task(index, range) for each slice, as ThreadPool::parallel_for does.
  template <class Task>
  void for_each(const Task& task) const {
    if (pool_ == nullptr || count() == 1) {
      for (int64_t index = 0; index < count(); ++index) task(index, slices_[index]);
    } else {
      pool_->parallel_for(count(), [&](int64_t index) { task(index, slices_[index]); });
    }
  }

 private:
  Chunks slices_;
  ThreadPool* pool_;
};

// The peaks of a row, from the peaks of its slices.
Peaks merged(const Peaks* slices, int64_t num);

// The sum of the block sums of a row, in the same order as sum_weights.
double sum_of_blocks(const double* sums, const RowSlices& slices);

template <class Logit>
Peaks find_peaks(const LogitKernels<Logit>& kernels, const Logit* row, const RowSlices& slices,
                 Logit* block_peaks);

// Returns the sum of all weights. Writes the sum of each block of kLogitBlock logits to `sums`.
template <class Logit>
double sum_weights(const LogitKernels<Logit>& kernels, const Logit* row, const RowSlices& slices,
                   const Weighing& weighing, double* sums);

}  // namespace ballast
