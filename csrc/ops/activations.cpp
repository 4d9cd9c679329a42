#include "ops/activations.h"

#include <algorithm>

#include "base/index_range.h"

namespace ballast {
namespace {

// Of `cols` activations of one token as the panels take them.
int64_t row_bytes(const Panels& panels, int64_t cols) {
  return panels.takes_quantized() ? cols / kGroupCols * panels.activation_kernels().block_bytes
                                  : cols * int64_t{sizeof(float)};
}

}  // namespace

Activations::Activations(ThreadPool& pool, const Panels& panels, const float* x, int64_t num_rows) {
  rows_.resize(static_cast<size_t>(num_rows));
  const int64_t cols = panels.cols();
  if (!panels.takes_quantized()) {
    for (int64_t row = 0; row < num_rows; ++row) rows_[static_cast<size_t>(row)] = x + row * cols;
    return;
  }
  const int64_t row_blocks = cols / kGroupCols;
  const ActivationKernels& kernels = panels.activation_kernels();
  const int64_t block_lines = kernels.block_bytes / int64_t{sizeof(CacheLine)};
  blocks_ = Scratch<CacheLine>(num_rows * row_blocks * block_lines);
  for (int64_t row = 0; row < num_rows; ++row)
    rows_[static_cast<size_t>(row)] = blocks_.get() + row * row_blocks * block_lines;
  // Some microseconds: a few tokens are not worth waking a thread. Whole super-blocks, which share a scale.
  constexpr int64_t kTaskBlocks = 256;
  static_assert(kTaskBlocks % kSuperGroups == 0);
  const Chunks chunks(num_rows * row_blocks, kTaskBlocks);
  pool.parallel_for(chunks.count(), [&](int64_t task) {
    const IndexRange range = chunks[task];
    kernels.quantize(x + range.begin * kGroupCols, range.size(), panels.blocks_per_scale(),
                     blocks_.get() + range.begin * block_lines);
  });
}

void prefetch_rows(const Panels& panels, const void* const* rows, int64_t num_rows) {
  if (num_rows == 0) return;
  constexpr int64_t kMostBytes = 1 << 20;  // more would drive each other out of the second-level cache
  const int64_t num_bytes = std::min(row_bytes(panels, panels.cols()), kMostBytes / num_rows);
  for (int64_t row = 0; row < num_rows; ++row) {
    const char* const from = static_cast<const char*>(rows[row]);
    for (int64_t byte = 0; byte < num_bytes; byte += int64_t{sizeof(CacheLine)})
      __builtin_prefetch(from + byte, 0, 2);
  }
}

int64_t tokens_per_block(const Panels& panels) {
  constexpr int64_t kCacheBytes = 512 << 10;
  const TokenBlock& block = panels.token_block();
  const int64_t cols = block.chunk_cols == 0 ? panels.cols() : std::min(panels.cols(), block.chunk_cols);
  const int64_t token_bytes = row_bytes(panels, cols);
  return std::clamp<int64_t>(kCacheBytes / token_bytes / 8 * 8, 16, block.most_tokens);
}

bool wait_for_weights(int64_t num_tokens) { return num_tokens <= 16; }

int64_t panels_per_task(int64_t num_panels, int64_t num_groups, int64_t num_tokens, int num_threads) {
  // Few tokens are fetched quickly, and small tasks even out what memory gives to each thread; fetching many
  // is worth a long run of panels.
  const bool is_few = wait_for_weights(num_tokens);
  const int64_t tasks_per_thread = is_few ? 8 : 4;
  const int64_t most_panels = is_few ? 16 : 32;
  const int64_t fewest_tasks = tasks_per_thread * num_threads;
  const int64_t share = (num_panels * num_groups + fewest_tasks - 1) / fewest_tasks;
  const int64_t longest = std::clamp<int64_t>(share, 1, most_panels);
  // The work of the busiest of equally fast threads, in eighths of a panel; starting a task costs one.
  const auto busiest = [&](int64_t length) {
    const int64_t num_tasks = num_groups * ((num_panels + length - 1) / length);
    return (num_tasks + num_threads - 1) / num_threads * (8 * length + 1);
  };
  int64_t best = longest;
  for (int64_t length = longest - 1; length > 0; --length) {
    if (busiest(length) < busiest(best)) best = length;
  }
  return best;
}

}  // namespace ballast
