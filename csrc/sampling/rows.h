// A step's rows of logits, on the pool's threads. A row is one task; where there are few rows for so many
// threads, all of them divide each row. Its result depends on neither, nor on the rows beside it.
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
  const uint8_t* allowed;  // see SequenceSampler::next
  Choice choice;           // is written
};

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
