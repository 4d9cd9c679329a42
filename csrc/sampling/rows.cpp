#include "sampling/rows.h"

namespace ballast {
namespace {

// Calls task(row, pool): on a thread a row with none, or row after row with the pool where its threads are
// twice as many.
template <class Task>
void for_rows(ThreadPool& pool, size_t num_rows, const Task& task) {
  if (2 * num_rows <= static_cast<size_t>(pool.num_threads())) {
    for (size_t row = 0; row < num_rows; ++row) task(row, &pool);
  } else {
    pool.parallel_for(static_cast<int64_t>(num_rows),
                      [&](int64_t row) { task(static_cast<size_t>(row), nullptr); });
  }
}

}  // namespace

void sample_rows(ThreadPool& pool, const SamplingKernels& kernels, int64_t vocabulary,
                 std::vector<SampledRow>& rows) {
  for_rows(pool, rows.size(), [&](size_t index, ThreadPool* dividing) {
    SampledRow& row = rows[index];
    row.choice = row.sampler->next(kernels, row.logits, vocabulary, row.allowed, dividing);
  });
}

void score_rows(ThreadPool& pool, const SamplingKernels& kernels, int64_t vocabulary,
                std::vector<ScoredRow>& rows) {
  for_rows(pool, rows.size(), [&](size_t index, ThreadPool* dividing) {
    ScoredRow& row = rows[index];
    row.found = find_logprobs(kernels, row.logits, vocabulary, row.token, row.num_top, row.top_tokens,
                              row.top_logprobs, dividing);
  });
}

}  // namespace ballast
