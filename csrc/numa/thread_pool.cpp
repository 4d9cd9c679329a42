#include "numa/thread_pool.h"

#include <chrono>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace ballast {
namespace {

// A gate word: | epoch : 47 | open : 1 | workers inside : 16 |
constexpr uint64_t kInsideMask = 0xffff;
constexpr uint64_t kOpen = uint64_t{1} << 16;
constexpr uint64_t kEpochOne = uint64_t{1} << 17;

uint64_t epoch_of(uint64_t gate) { return gate / kEpochOne; }
bool is_open(uint64_t gate) { return (gate & kOpen) != 0; }
bool is_deserted(uint64_t gate) { return (gate & kInsideMask) == 0; }

thread_local bool inside_task = false;

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits for `ready` awake, because waking a sleeping thread costs about as long as the gap between two
// operations of one forward pass. Gives up after 100 µs: an idle pool uses no CPU. Returns whether `ready`
// came true.
template <class Ready>
bool spin_until(const Ready& ready) {
  constexpr auto kLimit = std::chrono::microseconds(100);
  const auto begin = std::chrono::steady_clock::now();
  while (!ready()) {
    if (std::chrono::steady_clock::now() - begin > kLimit) return false;
    for (int i = 0; i < 16; ++i) relax();
  }
  return true;
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  if (num_threads < 1 || num_threads > kMaxThreads) {
    throw std::invalid_argument("num_threads is " + std::to_string(num_threads) + "; expected 1 to " +
                                std::to_string(kMaxThreads));
  }
  try {
    for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this] { worker(); });
  } catch (const std::system_error& error) {
    const size_t num_started = workers_.size() + 1;
    stop_workers();
    throw std::runtime_error("num_threads is " + std::to_string(num_threads) + ", but the system gave only " +
                             std::to_string(num_started) + ": " + error.what());
  }
}

ThreadPool::~ThreadPool() { stop_workers(); }

void ThreadPool::run(int64_t count, Job job) {
  BALLAST_CHECK(!inside_task);
  if (count <= 0) return;
  const std::lock_guard<std::mutex> turn(turn_);
  job_ = job;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  failed_.store(false, std::memory_order_relaxed);
  error_ = nullptr;
  if (workers_.empty() || count == 1) {
    drain();
  } else {
    gate_.store((epoch_of(gate_.load(std::memory_order_relaxed)) + 1) * kEpochOne | kOpen,
                std::memory_order_release);
    {
      const std::lock_guard<std::mutex> lock(sleep_);
    }  // a worker is either before its check or already asleep
    job_opened_.notify_all();
    drain();
    gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
    const auto deserted = [this] { return is_deserted(gate_.load(std::memory_order_acquire)); };
    if (!spin_until(deserted)) {
      std::unique_lock<std::mutex> lock(sleep_);
      workers_left_.wait(lock, deserted);
    }
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::worker() {
  uint64_t seen_epoch = 0;
  const auto called = [this, &seen_epoch] {
    const uint64_t gate = gate_.load(std::memory_order_acquire);
    return stopping_.load(std::memory_order_acquire) || (is_open(gate) && epoch_of(gate) != seen_epoch);
  };
  while (true) {
    if (!spin_until(called)) {
      std::unique_lock<std::mutex> lock(sleep_);
      job_opened_.wait(lock, called);
    }
    if (stopping_.load(std::memory_order_acquire)) return;
    if (join_job(seen_epoch)) {
      drain();
      leave_job();
    }
  }
}

bool ThreadPool::join_job(uint64_t& seen_epoch) {
  uint64_t gate = gate_.load(std::memory_order_acquire);
  while (is_open(gate)) {
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      seen_epoch = epoch_of(gate);
      return true;
    }
  }
  return false;
}

void ThreadPool::leave_job() {
  const uint64_t before = gate_.fetch_sub(1, std::memory_order_acq_rel);
  if (is_open(before) || !is_deserted(before - 1)) return;
  {
    const std::lock_guard<std::mutex> lock(sleep_);
  }
  workers_left_.notify_one();
}

void ThreadPool::drain() {
  inside_task = true;
  for (int64_t index; (index = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) {
    try {
      job_.call(job_.task, index);
    } catch (...) {
      next_.store(count_, std::memory_order_relaxed);
      if (!failed_.exchange(true, std::memory_order_relaxed)) error_ = std::current_exception();
    }
  }
  inside_task = false;
}

void ThreadPool::stop_workers() {
  {
    const std::lock_guard<std::mutex> lock(sleep_);
    stopping_.store(true, std::memory_order_release);
  }
  job_opened_.notify_all();
  for (std::thread& thread : workers_) thread.join();
  workers_.clear();
}

}  // namespace ballast
