// What a sequence's next token depends on beside its logits: parameters, and the tokens so far.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/sampling.h"
#include "sampling/choice.h"
#include "threads/thread_pool.h"

namespace ballast {

struct TokenBias {
  int32_t token;
  double bias;
};

struct SamplingParams {
  Selection selection;
  double presence_penalty;
  double frequency_penalty;
  double repetition_penalty;
  int64_t min_tokens;                // before which no stop token is chosen
  std::vector<int32_t> stop_tokens;  // may lie outside the vocabulary
  std::vector<TokenBias> biases;
  uint64_t seed;
};

// Its n-th token is a function of the seed, n, the tokens before and the logits alone.
class SequenceSampler {
 public:
  // Tokens of the prompt that lie outside the vocabulary have no effect.
  SequenceSampler(SamplingParams params, std::vector<int32_t> prompt);

  // Chooses a token of `logits` [vocabulary] and records it, unless nothing can be chosen. `allowed` has a
  // bit a token (bit i % 8 of byte i / 8), or is null for all of them. A grammar that allows stop tokens
  // alone prevails over min_tokens. The threads of `pool` divide the row, where that pays; none for null.
  // Throws std::out_of_range for a bias of a token outside the vocabulary.
  Choice next(const SamplingKernels& kernels, const float* logits, int64_t vocabulary, const uint8_t* allowed,
              ThreadPool* pool);

 private:
  struct TokenCount {
    int32_t token;
    int32_t count;
  };

  bool is_adjusted() const;
  void adjust(double* logits, int64_t vocabulary, const uint8_t* allowed) const;
  bool has_allowed_non_stop(int64_t vocabulary, const uint8_t* allowed) const;
  void record(int32_t token);

  SamplingParams params_;
  int64_t num_generated_ = 0;
  // By id. Each is kept only if a penalty asks for it.
  std::vector<TokenCount> generated_;
  std::vector<int32_t> seen_;
};

}  // namespace ballast
