// Experts with packed weights: gate and up in one pass, whose product is rounded for down immediately.
#pragma once

#include <cstdint>
#include <vector>

#include "moe/experts.h"
#include "moe/grouping.h"
#include "threads/thread_pool.h"

namespace ballast {

// Packed experts, the tokens that they compute, and the output [T, D].
struct PackedCall {
  const Experts* experts;
  const Grouping* grouping;
  float* out;
};

// Runs all calls over the same x [T, D], each as Experts::forward does. Their tasks are mixed evenly in the
// same loops, so that threads that wait for memory run concurrently with threads that multiply.
void forward_packed(ThreadPool& pool, const float* x, int64_t num_tokens,
                    const std::vector<PackedCall>& calls);

}  // namespace ballast
