// Converts router logits to the arguments of a layer's experts.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "moe/experts.h"
#include "moe/router.h"
#include "threads/thread_pool.h"

namespace ballast {

// Borrows the pool. One choice at a time, because all use the same buffers.
class RoutedExperts {
 public:
  RoutedExperts(ThreadPool& pool, const RoutingRule& rule) : pool_(pool), rule_(rule) {}

  // The arguments for the experts for tokens with these logits [T, num_experts]; bias [num_experts] or null,
  // as in `route`. Valid until the next call.
  Experts::Call choose(const Experts& experts, const float* bias, const float* logits, int64_t num_tokens,
                       float* out);
  // The same where tables give the experts of a token's id: table [vocabulary, num_chosen].
  Experts::Call look_up(const Experts& experts, const int32_t* table, const int32_t* token_ids,
                        const float* logits, int64_t num_tokens, float* out);
  // Reports the number of experts whose weights that call has read.
  void count_read(const Experts& experts, int64_t num_read);

  // Bytes of the weights that all calls so far have read. Thread-safe.
  int64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }

 private:
  // Grows the buffers and calls choose_for(tokens, ids, shares) for parts of the tokens.
  template <class ChooseFor>
  Experts::Call call(const Experts& experts, int64_t num_tokens, float* out, const ChooseFor& choose_for);

  ThreadPool& pool_;
  const RoutingRule rule_;
  std::vector<int32_t> ids_;   // [T, num_chosen]
  std::vector<float> shares_;  // [T, num_chosen]
  std::atomic<int64_t> bytes_read_{0};
};

}  // namespace ballast
