// Activations for products with panels: rounded to bytes once per call, or borrowed floats.
#pragma once

#include <cstdint>
#include <vector>

#include "base/scratch.h"
#include "quant/panels.h"
#include "threads/thread_pool.h"

namespace ballast {

// A row of activations, rounded for panels, begins at a cache line.
struct alignas(64) CacheLine {
  uint8_t bytes[64];
};

class Activations {
 public:
  // Rows of x, each `cols` long, for products with `panels`; float rows are borrowed.
  Activations(ThreadPool& pool, const Panels& panels, const float* x, int64_t num_rows);

  const void* const* rows() const { return rows_.data(); }
  const void* row(int64_t index) const { return rows_[static_cast<size_t>(index)]; }

 private:
  Scratch<CacheLine> blocks_;
  std::vector<const void*> rows_;
};

// Prefetches rows of activations: mostly another thread has made them, and weights that stream through the
// caches evict them.
void prefetch_rows(const Panels& panels, const void* const* rows, int64_t num_rows);

// Tokens that are multiplied with a run of panels before the next run is begun: few enough that their
// activations stay in the second-level cache.
int64_t tokens_per_block(const Panels& panels);

// Whether products of experts with this many tokens are bound by reading weights rather than by arithmetic.
bool wait_for_weights(int64_t num_tokens);

// Number of panels per task, for num_groups groups with num_panels panels each. Many tasks let threads finish
// together; large tasks read the tokens' activations less often.
int64_t panels_per_task(int64_t num_panels, int64_t num_groups, int64_t num_tokens, int num_threads);

}  // namespace ballast
