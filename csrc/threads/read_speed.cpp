#include "threads/read_speed.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "base/index_range.h"
#include "base/pages.h"

namespace ballast {

double measure_read_speed(ThreadPool& pool, int64_t num_bytes) {
  constexpr int64_t kTaskBytes = int64_t{1} << 20;
  constexpr int kPasses = 5;
  const Chunks tasks(num_bytes / kTaskBytes * kTaskBytes, kTaskBytes);
  const Pages pages(static_cast<size_t>(num_bytes));
  const auto part = [&](int64_t task) {
    return reinterpret_cast<uint64_t*>(pages.data() + tasks[task].begin);
  };
  constexpr int64_t kWords = kTaskBytes / 8;
  constexpr int64_t kWordsAhead = 1024;  // prefetch distance; without it, a core has too few reads in flight
  pool.parallel_for(tasks.count(), [&](int64_t task) { std::fill_n(part(task), kWords, uint64_t{1}); });
  std::atomic<uint64_t> total{0};  // used below, so that the compiler cannot remove the reads
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    pool.parallel_for(tasks.count(), [&](int64_t task) {
      const uint64_t* words = part(task);
      uint64_t sums[8] = {};
      for (int64_t i = 0; i < kWords; i += 8) {
        __builtin_prefetch(words + i + kWordsAhead);
        for (int k = 0; k < 8; ++k) sums[k] += words[i + k];
      }
      for (const uint64_t sum : sums) total.fetch_add(sum, std::memory_order_relaxed);
    });
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    best = std::max(best, static_cast<double>(tasks.count() * kTaskBytes) / elapsed.count());
  }
  return total.load() == 0 ? 0.0 : best;
}

}  // namespace ballast
