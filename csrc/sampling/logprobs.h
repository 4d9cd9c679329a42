// Log probabilities in the model's own distribution: before temperature, penalties, bias and masks.
#pragma once

#include <cstdint>

#include "cpu/sampling.h"
#include "threads/thread_pool.h"

namespace ballast {

struct LogProbability {
  double highest;  // the highest logit; if it is not finite, there are no probabilities
  double logprob;
};

// Returns the log probability of `token` in a row of n logits. Writes the `num_top` (at most n) most likely
// tokens and their log probabilities to top_tokens and top_logprobs, in descending order; ties are ordered by
// id. Divides the row among the threads of `pool` unless that is null.
LogProbability find_logprobs(const SamplingKernels& kernels, const float* row, int64_t n, int32_t token,
                             int64_t num_top, int32_t* top_tokens, double* top_logprobs, ThreadPool* pool);

}  // namespace ballast
