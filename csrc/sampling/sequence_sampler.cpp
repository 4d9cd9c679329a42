#include "sampling/sequence_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "sampling/philox.h"

namespace ballast {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

// Drops negative values, which are not tokens.
void sort_and_make_unique(std::vector<int32_t>& tokens) {
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  tokens.erase(tokens.begin(), std::lower_bound(tokens.begin(), tokens.end(), 0));
}

bool is_allowed(const uint8_t* allowed, int32_t token) {
  return (allowed[token / 8] >> (token % 8) & 1) != 0;
}

int64_t num_allowed(const uint8_t* allowed, int64_t vocabulary) {
  int64_t count = 0;
  for (int64_t i = 0; i < vocabulary / 8; ++i) count += __builtin_popcount(allowed[i]);
  for (int64_t token = vocabulary / 8 * 8; token < vocabulary; ++token) {
    count += is_allowed(allowed, static_cast<int32_t>(token));
  }
  return count;
}

}  // namespace

SequenceSampler::SequenceSampler(SamplingParams params, std::vector<int32_t> prompt)
    : params_(std::move(params)) {
  sort_and_make_unique(params_.stop_tokens);
  if (params_.repetition_penalty != 1.0) {
    seen_ = std::move(prompt);
    sort_and_make_unique(seen_);
  }
}

double SequenceSampler::uniform() const {
  return philox_uniform(params_.seed, static_cast<uint64_t>(num_generated_));
}

bool SequenceSampler::is_adjusted() const {
  return !seen_.empty() || !generated_.empty() || !params_.biases.empty() ||
         num_generated_ < params_.min_tokens;
}

void SequenceSampler::adjust(double* logits, int64_t vocabulary, const uint8_t* allowed) const {
  for (const int32_t token : seen_) {
    if (token >= vocabulary) break;
    double& logit = logits[token];
    logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
  }
  for (const TokenCount& each : generated_) {
    logits[each.token] -= params_.frequency_penalty * each.count + params_.presence_penalty;
  }
  for (const TokenBias& each : params_.biases) {
    if (each.token < 0 || each.token >= vocabulary) {
      throw std::out_of_range("logit_bias has token " + std::to_string(each.token) + "; the model has " +
                              std::to_string(vocabulary));
    }
    logits[each.token] += each.bias;
  }
  if (num_generated_ < params_.min_tokens && has_allowed_non_stop(vocabulary, allowed)) {
    for (const int32_t token : params_.stop_tokens) {
      if (token < vocabulary) logits[token] = kNever;
    }
  }
}

// Whether any token other than the stop tokens is allowed.
bool SequenceSampler::has_allowed_non_stop(int64_t vocabulary, const uint8_t* allowed) const {
  if (allowed == nullptr) return true;
  const int64_t num_stops =
      std::count_if(params_.stop_tokens.begin(), params_.stop_tokens.end(),
                    [&](int32_t token) { return token < vocabulary && is_allowed(allowed, token); });
  return num_allowed(allowed, vocabulary) > num_stops;
}

void SequenceSampler::record(int32_t token) {
  ++num_generated_;
  if (params_.presence_penalty != 0.0 || params_.frequency_penalty != 0.0) {
    const auto at = std::lower_bound(generated_.begin(), generated_.end(), token,
                                     [](const TokenCount& a, int32_t b) { return a.token < b; });
    if (at != generated_.end() && at->token == token) {
      ++at->count;
    } else {
      generated_.insert(at, {token, 1});
    }
  }
  if (params_.repetition_penalty != 1.0) {
    const auto at = std::lower_bound(seen_.begin(), seen_.end(), token);
    if (at == seen_.end() || *at != token) seen_.insert(at, token);
  }
}

}  // namespace ballast
