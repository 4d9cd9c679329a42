// One token of a row of logits.
#pragma once

#include <cstdint>

#include "cpu/sampling.h"
#include "threads/thread_pool.h"

namespace ballast {

// Which tokens may be chosen, and how likely.
struct Selection {
  double temperature;  // 0 is greedy
  int64_t top_k;       // 0 for every token
  double top_p;
  double min_p;
};

struct Choice {
  int32_t token;
  double highest;  // logit; where it is not finite, nothing can be chosen and the token is one that has it
};

// Whether so much of a row of n logits is weighed that dividing it among threads pays, which are woken for
// it.
bool is_worth_dividing(const Selection& selection, int64_t n);

// The token at `uniform`, 0…1, of what the selection leaves of the row's n logits. The row is divided among
// the threads of `pool`, unless that is null; the token does not depend on it. See
// docs/decisions/0053-tokens-are-chosen-without-sorting.md for the order in which tokens lie there.
template <class Logit>
Choice choose(const SamplingKernels& kernels, const LogitKernels<Logit>& row_kernels, const Logit* row,
              int64_t n, const Selection& selection, double uniform, ThreadPool* pool);

}  // namespace ballast
