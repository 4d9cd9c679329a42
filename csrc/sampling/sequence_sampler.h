// The parameters and earlier tokens of a sequence, which together with its logits determine the next token.
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
  int64_t min_tokens;                // no stop token is chosen before this number of tokens
  std::vector<int32_t> stop_tokens;  // may lie outside the vocabulary
  std::vector<TokenBias> biases;
  uint64_t seed;
};

// Calls `visit(name, field)` for every number except the seed.
template <class Visit>
void visit_numbers(SamplingParams& params, const Visit& visit) {
  visit_fields(params.selection, visit);
  visit("presence_penalty", params.presence_penalty);
  visit("frequency_penalty", params.frequency_penalty);
  visit("repetition_penalty", params.repetition_penalty);
  visit("min_tokens", params.min_tokens);
}

// The n-th token depends only on the parameters, n, the earlier tokens and the logits.
class SequenceSampler {
 public:
  // Tokens of the prompt that lie outside the vocabulary have no effect.
  SequenceSampler(SamplingParams params, std::vector<int32_t> prompt);

  const Selection& selection() const { return params_.selection; }
  // The random number in [0, 1) that selects the next token.
  double uniform() const;
  // Whether penalties, biases or min_tokens change the logits of the next token.
  bool is_adjusted() const;
  // Applies penalties, biases and min_tokens to `logits` [vocabulary]. `allowed` has one bit per token (bit
  // i % 8 of byte i / 8), null: all are allowed; the caller has already set the logits of all other tokens to
  // minus infinity. If only stop tokens are allowed, min_tokens has no effect. Throws std::out_of_range if a
  // bias is for a token outside the vocabulary.
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
  // Ordered by id. Each is maintained only if a penalty needs it.
  std::vector<TokenCount> generated_;
  std::vector<int32_t> seen_;
};

}  // namespace ballast
