// An event count on a futex: threads sleep on it until another thread has made a condition true. Waking all
// takes one system call, or none if no thread sleeps, and the woken threads take no lock.
#pragma once

#include <atomic>
#include <cstdint>

namespace ballast {

class EventCount {
 public:
  // Sleeps at most until the next wake_all, unless `ready` is true; the caller checks again afterwards.
  // `ready` may only read atomics.
  template <class Ready>
  void wait(const Ready& ready) {
    // Both sides change num_waiting_: either wake_all sees this thread counted, or this thread sees what was
    // done before wake_all.
    num_waiting_.fetch_add(1, std::memory_order_acq_rel);
    const uint32_t seen = num_wakes_.load(std::memory_order_acquire);
    if (!ready()) sleep_while(seen);
    num_waiting_.fetch_sub(1, std::memory_order_relaxed);
  }

  // Call this after making `ready` true.
  void wake_all() {
    if (num_waiting_.fetch_add(0, std::memory_order_acq_rel) == 0) return;
    num_wakes_.fetch_add(1, std::memory_order_release);
    wake_sleepers();
  }

 private:
  void sleep_while(uint32_t seen);
  void wake_sleepers();

  std::atomic<uint32_t> num_waiting_{0};
  std::atomic<uint32_t> num_wakes_{0};  // the futex
};

}  // namespace ballast
