// From router logits to what the routed experts of a layer add.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "moe/experts.h"
#include "moe/router.h"
#include "numa/thread_pool.h"

namespace ballast {

// Borrows the pool. One call at a time: calls share the memory for what was chosen.
class RoutedExperts {
 public:
  RoutedExperts(ThreadPool& pool, const RoutingRule& rule) : pool_(pool), rule_(rule) {}

  // out [T, D] = what the chosen experts make of x [T, D]; logits [T, num_experts], bias [num_experts] or
  // null as `route` has them. `beside` are calls over the same x, computed in the same loops.
  void forward(const Experts& experts, const float* bias, const float* logits, const float* x,
               int64_t num_tokens, float* out, const std::vector<Experts::Call>& beside);

  // Of the weights of every expert that a call has chosen, so far; may be asked for from any thread.
  int64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }

 private:
  ThreadPool& pool_;
  const RoutingRule rule_;
  std::vector<int32_t> ids_;   // [T, num_chosen]
  std::vector<float> shares_;  // [T, num_chosen]
  std::atomic<int64_t> bytes_read_{0};
};

}  // namespace ballast
