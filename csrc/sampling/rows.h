// Samples from all rows of a step on the pool's threads. The slices of all rows are tasks of one loop, which
// balances the load. A row's result depends neither on the threads nor on the other rows.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/sampling.h"
#include "sampling/choice.h"
#include "sampling/logprobs.h"
#include "sampling/sequence_sampler.h"
#include "threads/thread_pool.h"

namespace ballast {

struct SampledRow {
  SequenceSampler* sampler;  // used by this row only
  const float* logits;
  const uint8_t* allowed;  // see SequenceSampler::adjust
  Choice choice;           // output
};

// Samples a token from each row and records it in the row's sampler, unless no token can be sampled. Throws
// std::out_of_range if a bias is for a token outside the vocabulary.
void sample_rows(ThreadPool& pool, const SamplingKernels& kernels, int64_t vocabulary,
                 std::vector<SampledRow>& rows);

struct ScoredRow {
  const float* logits;
  int32_t token;
  int64_t num_top;
  // Outputs:
  LogProbability found;
  int32_t* top_tokens;
  double* top_logprobs;
};

void score_rows(ThreadPool& pool, const SamplingKernels& kernels, int64_t vocabulary,
                std::vector<ScoredRow>& rows);

}  // namespace ballast
