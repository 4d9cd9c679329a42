#include "moe/routed.h"

#include "base/index_range.h"

namespace ballast {

Experts::Call RoutedExperts::choose(const Experts& experts, const float* bias, const float* logits,
                                    int64_t num_tokens, float* out) {
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
    route(logits + tokens.begin * rule_.num_experts, tokens.size(), bias, rule_, ids_.data() + first,
          shares_.data() + first);
  });
  return {&experts, ids_.data(), shares_.data(), rule_.num_chosen, out};
}

void RoutedExperts::count_read(const Experts& experts, int64_t num_read) {
  bytes_read_.fetch_add(num_read * experts.expert_bytes(), std::memory_order_relaxed);
}

}  // namespace ballast
