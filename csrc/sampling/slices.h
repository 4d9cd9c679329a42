// How a row of logits is cut for passes over it.
#pragma once

#include <cstdint>

#include "base/index_range.h"
#include "cpu/sampling.h"
#include "threads/thread_pool.h"

namespace ballast {

// Logits of a slice. What slices find is merged in their order, so that neither the number of threads nor
// which of them took a slice shows in a bit of the result.
constexpr int64_t kSliceLogits = 32 * kLogitBlock;

// The slices of a row of n logits, and who works on them.
class RowSlices {
 public:
  // On the pool's threads, of which the caller is the first; null: on the calling thread alone.
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

// Of a row, from those of its slices.
Peaks merged(const Peaks* slices, int64_t num);

// The sum of a row's blocks, as sum_weights forms it.
double sum_of_blocks(const double* sums, const RowSlices& slices);

template <class Logit>
Peaks find_peaks(const LogitKernels<Logit>& kernels, const Logit* row, const RowSlices& slices,
                 Logit* block_peaks);

// The sum of all weights; `sums` gets that of each block of kLogitBlock.
template <class Logit>
double sum_weights(const LogitKernels<Logit>& kernels, const Logit* row, const RowSlices& slices,
                   const Weighing& weighing, double* sums);

}  // namespace ballast
