// A fixed set of threads that run the tasks of one loop at a time; they may be pinned, and grouped by node.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/event_count.h"
#include "numa/placement.h"
#include "threads/loop_recorder.h"

namespace ballast {

class ThreadPool {
 public:
  static constexpr int kMaxThreads = 1024;

  // num_threads counts the thread that calls parallel_for, which works too: 1 starts no thread at all.
  // Throws std::invalid_argument outside 1…kMaxThreads, std::runtime_error when the system gives no more
  // threads.
  explicit ThreadPool(int num_threads);
  // One thread an entry, pinned to its CPU; the caller is the first entry of the first node, once it calls
  // adopt_caller. Where the system refuses to pin a thread, it runs unpinned (see pin_refusal). Threads are
  // named ballast-cpu-N.
  explicit ThreadPool(const Placement& placement);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // While an instance lives, idle threads spin for up to 2 ms instead of 100 µs before they sleep; its
  // constructor wakes sleeping ones. For loops that follow each other within that time. Spinning threads
  // yield their CPUs to other threads.
  class KeepAwake {
   public:
    explicit KeepAwake(ThreadPool& pool);
    ~KeepAwake();
    KeepAwake(const KeepAwake&) = delete;
    KeepAwake& operator=(const KeepAwake&) = delete;

   private:
    ThreadPool& pool_;
  };

  int num_threads() const { return num_threads_; }
  int num_nodes() const { return static_cast<int>(nodes_.size()); }
  // The kernel's number of the pool's `node`, counted from 0; kUnknownNode when it tells none.
  int node_index(int node) const { return nodes_[static_cast<size_t>(node)].node; }

  std::vector<int> threads_per_node() const;

  // Names and pins the calling thread as the pool's first one, for good. For the thread that will make all
  // calls; it must start no other threads, as they would inherit its CPU. Returns what pin_refusal would say.
  std::string adopt_caller();

  // Why the first of the pool's own threads that could not be pinned could not; empty when all could.
  const std::string& pin_refusal() const { return pin_refusal_; }

  // Calls task(index) once for each index in 0…count, in any order and on any thread, and returns when all
  // are done. The first exception of a task cancels the indices not yet begun and is thrown here. Calls from
  // several threads take turns; a call from inside a task breaks an invariant (it could wait for itself).
  template <class Task>
  void parallel_for(int64_t count, const Task& task) {
    run(&count, 1,
        {&task, [](const void* self, int, int64_t index) { (*static_cast<const Task*>(self))(index); }});
  }

  // Calls task(node, index) once for each index in 0…counts[node] of each node, counted from 0, on a thread
  // of that node, so that it may touch memory first or read what is near. Otherwise as parallel_for. `counts`
  // has num_nodes() entries.
  template <class Task>
  void parallel_for_nodes(const std::vector<int64_t>& counts, const Task& task) {
    run(counts.data(), counts.size(), {&task, [](const void* self, int node, int64_t index) {
                                         (*static_cast<const Task*>(self))(node, index);
                                       }});
  }

  // Claims the loop's next task for the calling thread before it finishes its current one, so that data of
  // the next task can be prefetched. Returns the same task when called again. kNoTask outside a task, and
  // when no more tasks are left than there are threads (the first free thread takes those).
  static constexpr int64_t kNoTask = -1;
  static int64_t claim_next();

  // Between the two calls, the times of every loop that is shared with other threads.
  void start_recording();
  std::vector<LoopTimes> stop_recording();

 private:
  struct Job {
    const void* task = nullptr;
    void (*call)(const void* task, int node, int64_t index) = nullptr;
  };

  // The task indices of a loop, handed out one by one: a node's own, or those that any thread may take.
  struct alignas(64) TaskQueue {
    std::atomic<int64_t> next{0};
    int64_t count = 0;
  };

  // One thread at work on a queue.
  struct QueueWork {
    TaskQueue& queue;
    int num_threads;  // that work on it
    int64_t claimed = kNoTask;
  };
  static thread_local QueueWork* current_;  // null outside a task

  void start_workers();
  void run(const int64_t* counts, size_t num_counts, Job job);
  void worker(int node);
  bool join_job(uint64_t& seen_epoch);
  void leave_job();
  void drain(int node);
  int64_t next_index(QueueWork& work) const;
  bool all_dealt_out() const;
  template <class Ready>
  bool spin_until(const Ready& ready) const;
  template <class Ready>
  void wait_until(const Ready& ready);
  void stop_workers();

  const std::vector<NodeThreads> nodes_;
  const int num_threads_;
  std::string pin_refusal_;
  std::vector<std::thread> workers_;
  std::mutex turn_;  // held for a whole parallel_for

  // The gate of the current job: epoch, whether it is open, how many workers are inside. Everything under it
  // is written by the caller while no worker is inside, so that a worker which wakes late is not waited for.
  std::atomic<uint64_t> gate_{0};
  Job job_;
  std::vector<TaskQueue> queues_;
  bool by_node_ = false;  // each node works on its own queue; otherwise all on the first
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;  // of the task that set failed_
  LoopRecorder recorder_;

  std::atomic<bool> stopping_{false};
  EventCount job_opened_;
  EventCount caller_may_go_on_;
  std::atomic<int> num_keeping_awake_{0};
  std::atomic<uint64_t> num_wake_ups_{0};  // how often a KeepAwake has begun
};

}  // namespace ballast
