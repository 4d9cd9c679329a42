#include "threads/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/relax.h"

namespace ballast {
namespace {

// A gate word: | epoch : 47 | open : 1 | workers inside : 16 |
constexpr uint64_t kInsideMask = 0xffff;
constexpr uint64_t kOpen = uint64_t{1} << 16;
constexpr uint64_t kEpochOne = uint64_t{1} << 17;

uint64_t epoch_of(uint64_t gate) { return gate / kEpochOne; }
bool is_open(uint64_t gate) { return (gate & kOpen) != 0; }
bool is_deserted(uint64_t gate) { return (gate & kInsideMask) == 0; }

// Threads spin this long before they sleep: about the gap between two operations of a forward pass, and also
// about the time to wake a thread. An idle pool uses no CPU.
constexpr auto kSpin = std::chrono::microseconds(100);
// Spin time while a KeepAwake exists: covers attention and other work on a device between two layers of
// experts.
constexpr auto kLongSpin = std::chrono::milliseconds(2);
constexpr int kLooksBetweenClocks = 16;
constexpr int kLooksBetweenYields = 256;

std::string name_and_pin(pthread_t thread, int number, int cpu) {
  char name[16];  // the kernel keeps 15 characters
  std::snprintf(name, sizeof(name), "ballast-cpu-%d", number);
  pthread_setname_np(thread, name);
  if (cpu == kAnyCpu) return "";
  const size_t capacity = static_cast<size_t>(cpu) + 1;
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(capacity),
                                                             [](cpu_set_t* used) { CPU_FREE(used); });
  const size_t size = CPU_ALLOC_SIZE(capacity);
  CPU_ZERO_S(size, set.get());
  CPU_SET_S(static_cast<size_t>(cpu), size, set.get());
  const int error = pthread_setaffinity_np(thread, size, set.get());
  if (error == 0) return "";
  return std::string(name) + " to CPU " + std::to_string(cpu) + ": " +
         std::error_code(error, std::generic_category()).message();
}

int checked_size(int num_threads) {
  if (num_threads < 1 || num_threads > ThreadPool::kMaxThreads) {
    throw std::invalid_argument("num_threads is " + std::to_string(num_threads) + "; expected 1 to " +
                                std::to_string(ThreadPool::kMaxThreads));
  }
  return num_threads;
}

const Placement& without_empty_nodes(const Placement& placement) {
  for (const NodeThreads& node : placement.nodes) {
    if (node.cpus.empty()) {
      throw std::invalid_argument("node " + std::to_string(node.node) +
                                  " of the placement has no thread; leave it out");
    }
  }
  return placement;
}

}  // namespace

thread_local ThreadPool::QueueWork* ThreadPool::current_ = nullptr;

ThreadPool::ThreadPool(int num_threads)
    : nodes_{{kUnknownNode, std::vector<int>(static_cast<size_t>(checked_size(num_threads)), kAnyCpu)}},
      num_threads_(num_threads),
      queues_(nodes_.size()) {
  start_workers();
}

ThreadPool::ThreadPool(const Placement& placement)
    : nodes_(without_empty_nodes(placement).nodes),
      num_threads_(checked_size(placement.num_threads())),
      queues_(nodes_.size()) {
  start_workers();
}

ThreadPool::~ThreadPool() { stop_workers(); }

void ThreadPool::start_workers() {
  int number = 0;
  try {
    for (int node = 0; node < num_nodes(); ++node) {
      for (int cpu : nodes_[static_cast<size_t>(node)].cpus) {
        if (number > 0) {
          workers_.emplace_back([this, node] { worker(node); });
          const std::string refusal = name_and_pin(workers_.back().native_handle(), number, cpu);
          if (pin_refusal_.empty()) pin_refusal_ = refusal;
        }
        ++number;
      }
    }
  } catch (const std::exception& error) {
    const size_t num_started = workers_.size() + 1;
    stop_workers();
    throw std::runtime_error("num_threads is " + std::to_string(num_threads_) +
                             ", but the system gave only " + std::to_string(num_started) + ": " +
                             error.what());
  }
}

std::vector<int> ThreadPool::threads_per_node() const {
  std::vector<int> counts;
  for (const NodeThreads& node : nodes_) counts.push_back(static_cast<int>(node.cpus.size()));
  return counts;
}

std::string ThreadPool::adopt_caller() { return name_and_pin(pthread_self(), 0, nodes_[0].cpus[0]); }

void ThreadPool::run(const int64_t* counts, size_t num_counts, Job job) {
  BALLAST_CHECK(current_ == nullptr);
  BALLAST_CHECK(num_counts == 1 || num_counts == nodes_.size());
  if (std::all_of(counts, counts + num_counts, [](int64_t count) { return count <= 0; })) return;
  const std::lock_guard<std::mutex> turn(turn_);
  job_ = job;
  by_node_ = num_counts > 1;
  for (size_t i = 0; i < queues_.size(); ++i) {
    queues_[i].count = i < num_counts ? std::max<int64_t>(counts[i], 0) : 0;
    queues_[i].next.store(0, std::memory_order_relaxed);
  }
  failed_.store(false, std::memory_order_relaxed);
  error_ = nullptr;
  if (workers_.empty() || (!by_node_ && counts[0] == 1)) {
    drain(0);
  } else {
    recorder_.open();
    gate_.store((epoch_of(gate_.load(std::memory_order_relaxed)) + 1) * kEpochOne | kOpen,
                std::memory_order_release);
    job_opened_.wake_all();
    drain(0);
    // Other nodes' threads process their own tasks, even if they wake late.
    wait_until([this] { return all_dealt_out(); });
    gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
    wait_until([this] { return is_deserted(gate_.load(std::memory_order_acquire)); });
    recorder_.close();
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::start_recording() {
  const std::lock_guard<std::mutex> turn(turn_);
  recorder_.start();
}

std::vector<LoopTimes> ThreadPool::stop_recording() {
  const std::lock_guard<std::mutex> turn(turn_);
  return recorder_.stop();
}

void ThreadPool::worker(int node) {
  uint64_t seen_epoch = 0;
  const auto called = [this, &seen_epoch] {
    const uint64_t gate = gate_.load(std::memory_order_acquire);
    return stopping_.load(std::memory_order_acquire) || (is_open(gate) && epoch_of(gate) != seen_epoch);
  };
  while (true) {
    const uint64_t num_wake_ups = num_wake_ups_.load(std::memory_order_acquire);
    if (!spin_until(called)) {
      job_opened_.wait(
          [&] { return called() || num_wake_ups_.load(std::memory_order_acquire) != num_wake_ups; });
    }
    if (stopping_.load(std::memory_order_acquire)) return;
    if (join_job(seen_epoch)) {
      recorder_.join();
      drain(node);
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
  if (!is_open(before) && is_deserted(before - 1)) caller_may_go_on_.wake_all();
}

void ThreadPool::drain(int node) {
  const size_t queue_index = by_node_ ? static_cast<size_t>(node) : 0;
  TaskQueue& queue = queues_[queue_index];
  QueueWork work{queue, by_node_ ? static_cast<int>(nodes_[queue_index].cpus.size()) : num_threads_};
  current_ = &work;
  int64_t index;
  while ((index = next_index(work)) < queue.count) {
    try {
      job_.call(job_.task, node, index);
    } catch (...) {
      for (TaskQueue& other : queues_) other.next.store(other.count, std::memory_order_relaxed);
      if (!failed_.exchange(true, std::memory_order_relaxed)) error_ = std::current_exception();
    }
  }
  current_ = nullptr;
  // The first thread that finds the queue empty wakes the caller; so does a thread that cancelled the loop.
  if (by_node_ && index == queue.count) caller_may_go_on_.wake_all();
}

int64_t ThreadPool::next_index(QueueWork& work) const {
  const int64_t claimed = std::exchange(work.claimed, kNoTask);
  if (claimed != kNoTask && !failed_.load(std::memory_order_relaxed)) return claimed;
  return work.queue.next.fetch_add(1, std::memory_order_relaxed);
}

int64_t ThreadPool::claim_next() {
  if (current_ == nullptr) return kNoTask;
  QueueWork& work = *current_;
  if (work.claimed != kNoTask) return work.claimed;
  std::atomic<int64_t>& next = work.queue.next;
  int64_t index = next.load(std::memory_order_relaxed);
  while (index + work.num_threads < work.queue.count) {
    if (next.compare_exchange_weak(index, index + 1, std::memory_order_relaxed)) return work.claimed = index;
  }
  return kNoTask;
}

bool ThreadPool::all_dealt_out() const {
  return std::all_of(queues_.begin(), queues_.end(), [](const TaskQueue& queue) {
    return queue.next.load(std::memory_order_relaxed) >= queue.count;
  });
}

// Spins until `ready` returns true; returns false if it takes too long.
template <class Ready>
bool ThreadPool::spin_until(const Ready& ready) const {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t looks = 1; !ready(); ++looks) {
    relax();
    if (looks % kLooksBetweenClocks != 0) continue;
    const bool is_kept_awake = num_keeping_awake_.load(std::memory_order_relaxed) > 0;
    if (std::chrono::steady_clock::now() - begin > (is_kept_awake ? kLongSpin : kSpin)) return false;
    if (is_kept_awake && looks % kLooksBetweenYields == 0) std::this_thread::yield();
  }
  return true;
}

template <class Ready>
void ThreadPool::wait_until(const Ready& ready) {
  while (!spin_until(ready)) caller_may_go_on_.wait(ready);
}

ThreadPool::KeepAwake::KeepAwake(ThreadPool& pool) : pool_(pool) {
  pool_.num_keeping_awake_.fetch_add(1, std::memory_order_relaxed);
  pool_.num_wake_ups_.fetch_add(1, std::memory_order_release);
  pool_.job_opened_.wake_all();
}

ThreadPool::KeepAwake::~KeepAwake() { pool_.num_keeping_awake_.fetch_sub(1, std::memory_order_relaxed); }

void ThreadPool::stop_workers() {
  stopping_.store(true, std::memory_order_release);
  job_opened_.wake_all();
  for (std::thread& thread : workers_) thread.join();
  workers_.clear();
}

}  // namespace ballast
