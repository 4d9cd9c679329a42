#include "moe/routed.h"

#include <algorithm>

#include "base/index_range.h"

namespace ballast {

template <class ChooseFor>
Experts::Call RoutedExperts::call(const Experts& experts, int64_t num_tokens, float* out,
                                  const ChooseFor& choose_for) {
  const size_t num_pairs = static_cast<size_t>(num_tokens * rule_.num_chosen);
  if (ids_.size() < num_pairs) {
    ids_.resize(num_pairs);
    shares_.resize(num_pairs);
  }
  // A few tokens are not worth waking a thread: they make one task, which the caller runs itself.
  constexpr int64_t kTaskTokens = 4;
  const Chunks chunks(num_tokens, kTaskTokens);
  pool_.parallel_for(chunks.count(), [&](int64_t task) {
    const IndexRange tokens = chunks[task];
    const int64_t first = tokens.begin * rule_.num_chosen;
    choose_for(tokens, ids_.data() + first, shares_.data() + first);
  });
  return {&experts, ids_.data(), shares_.data(), rule_.num_chosen, out};
}

Experts::Call RoutedExperts::choose(const Experts& experts, const float* bias, const float* logits,
                                    int64_t num_tokens, float* out) {
  return call(experts, num_tokens, out, [&](IndexRange tokens, int32_t* ids, float* shares) {
    route(logits + tokens.begin * rule_.num_experts, tokens.size(), bias, rule_, ids, shares);
  });
}

Experts::Call RoutedExperts::look_up(const Experts& experts, const int32_t* table, const int32_t* token_ids,
                                     const float* logits, int64_t num_tokens, float* out) {
  const int64_t num_chosen = rule_.num_chosen;
  return call(experts, num_tokens, out, [&](IndexRange tokens, int32_t* ids, float* shares) {
    for (int64_t token = tokens.begin; token < tokens.end; ++token) {
      std::copy_n(table + token_ids[token] * num_chosen, num_chosen,
                  ids + (token - tokens.begin) * num_chosen);
    }
    weigh(logits + tokens.begin * rule_.num_experts, tokens.size(), rule_, ids, shares);
  });
}

void RoutedExperts::count_read(const Experts& experts, int64_t num_read) {
  bytes_read_.fetch_add(num_read * experts.expert_bytes(), std::memory_order_relaxed);
}

}  // namespace ballast
