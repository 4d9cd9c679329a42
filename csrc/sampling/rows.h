// A step's rows of logits, on the pool's threads: slices of all rows are tasks of one loop, so that threads
// that are many, or late, have little to wait for. What a row gives depends on neither threads nor the other
// rows.
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
  SequenceSampler* sampler;  // of this row alone
  const float* logits;
  const uint8_t* allowed;  // see SequenceSampler::adjust
  Choice choice;           // is written
};

// Chooses a token of each row and has its sampler record it, unless nothing can be chosen. Throws
// std::out_of_range for a bias of a token outside the vocabulary.
void sample_rows(ThreadPool& pool, const SamplingKernels& kernels, int64_t vocabulary,
                 std::vector<SampledRow>& rows);

struct ScoredRow {
  const float* logits;
  int32_t token;
  int64_t num_top;
  // These are written.
  LogProbability found;
  int32_t* top_tokens;
  double* top_logprobs;
};

void score_rows(ThreadPool& pool, const SamplingKernels& kernels, int64_t vocabulary,
                std::vector<ScoredRow>& rows);

}  // namespace ballast
