// Records when the loops of a thread pool begin, are joined and end, for benchmarks.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace ballast {

// Nanoseconds of the steady clock.
struct LoopTimes {
  int64_t opened;
  int64_t first_joined;  // by a thread other than the caller; 0 if none joined
  int64_t last_joined;
  int64_t over;
};

// Only the current user of the pool calls `start`, `stop`, `open` and `close`; threads inside a loop call
// `join`.
class LoopRecorder {
 public:
  void start() { is_on_ = true; }
  std::vector<LoopTimes> stop() {
    is_on_ = false;
    return std::exchange(loops_, {});
  }

  void open() {
    if (!is_on_) return;
    first_joined_.store(std::numeric_limits<int64_t>::max(), std::memory_order_relaxed);
    last_joined_.store(0, std::memory_order_relaxed);
    opened_ = now();
  }
  void join() {
    if (!is_on_) return;
    const int64_t joined = now();
    for (int64_t first = first_joined_.load(); joined < first;) {
      if (first_joined_.compare_exchange_weak(first, joined)) break;
    }
    for (int64_t last = last_joined_.load(); joined > last;) {
      if (last_joined_.compare_exchange_weak(last, joined)) break;
    }
  }
  void close() {
    if (!is_on_) return;
    const int64_t last = last_joined_.load();
    loops_.push_back({opened_, last == 0 ? 0 : first_joined_.load(), last, now()});
  }

 private:
  static int64_t now() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  bool is_on_ = false;
  int64_t opened_ = 0;
  std::atomic<int64_t> first_joined_{0};
  std::atomic<int64_t> last_joined_{0};
  std::vector<LoopTimes> loops_;
};

}  // namespace ballast
