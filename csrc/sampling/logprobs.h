// Log probabilities in the model's own distribution: before temperature, penalties, bias and masks.
#pragma once

#include <cstdint>

#include "cpu/sampling.h"
#include "threads/thread_pool.h"

namespace ballast {

struct LogProbability {
  double highest;  // logit; where it is not finite, there are no probabilities
  double logprob;
};

// Of `token` among the n logits of a row. The `num_top` most likely tokens, at most n, go to top_tokens and
// top_logprobs, the most likely first, of equal ones the lower id. The row is
// divided among the threads of `pool`, unless that is null.
LogProbability find_logprobs(const SamplingKernels& kernels, const float* row, int64_t n, int32_t token,
                             int64_t num_top, int32_t* top_tokens, double* top_logprobs, ThreadPool* pool);

}  // namespace ballast
