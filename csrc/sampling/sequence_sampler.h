// The state that determines a sequence's next token, other than its logits: parameters and the tokens so far.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/choice.h"

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

  const Selection& selection() const { return params_.selection; }
  // What chooses the next token.
  double uniform() const;
  // Whether the next token is not chosen by the logits alone.
  bool is_adjusted() const;
  // Applies penalties, biases and min_tokens to `logits` [vocabulary], from which tokens that `allowed` lacks
  // are gone already. It has a bit a token (bit i % 8 of byte i / 8), or is null for all of them. A grammar
  // that allows stop tokens alone prevails over min_tokens. Throws std::out_of_range for a bias of a token
  // outside the vocabulary.
  void adjust(double* logits, int64_t vocabulary, const uint8_t* allowed) const;
  void record(int32_t token);

 private:
  struct TokenCount {
    int32_t token;
    int32_t count;
  };

  bool has_allowed_non_stop(int64_t vocabulary, const uint8_t* allowed) const;

  SamplingParams params_;
  int64_t num_generated_ = 0;
  // By id. Each is kept only if a penalty asks for it.
  std::vector<TokenCount> generated_;
  std::vector<int32_t> seen_;
};

}  // namespace ballast
