#include "sampling/rows.h"

namespace ballast {

void sample_rows(ThreadPool& pool, const SamplingKernels& kernels, int64_t vocabulary,
                 std::vector<SampledRow>& rows) {
  pool.parallel_for(static_cast<int64_t>(rows.size()), [&](int64_t index) {
    SampledRow& row = rows[static_cast<size_t>(index)];
    row.choice = row.sampler->next(kernels, row.logits, vocabulary, row.allowed);
  });
}

void score_rows(ThreadPool& pool, const SamplingKernels& kernels, int64_t vocabulary,
                std::vector<ScoredRow>& rows) {
  pool.parallel_for(static_cast<int64_t>(rows.size()), [&](int64_t index) {
    ScoredRow& row = rows[static_cast<size_t>(index)];
    row.found = find_logprobs(kernels, row.logits, vocabulary, row.token, row.num_top, row.top_tokens,
                              row.top_logprobs);
  });
}

}  // namespace ballast
