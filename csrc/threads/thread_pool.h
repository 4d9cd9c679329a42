// A fixed set of threads that run the tasks of one loop at a time. They can be pinned and grouped by node.
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

  // num_threads includes the thread that calls parallel_for, which runs tasks too: with 1, no thread is
  // started. Throws std::invalid_argument outside 1…kMaxThreads, std::runtime_error if the system cannot
  // start more threads.
  explicit ThreadPool(int num_threads);
  // One thread per entry, pinned to its CPU. The first entry of the first node is for the caller, see
  // adopt_caller. A thread that the system refuses to pin runs unpinned, see pin_refusal. Threads are named
  // ballast-cpu-N.
  explicit ThreadPool(const Placement& placement);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // During the lifetime of an instance, idle threads spin for up to 2 ms instead of 100 µs before they sleep.
  // Its constructor wakes sleeping threads. For loops that follow each other within that time. Spinning
  // threads yield their CPUs to other threads.
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
  // The kernel's number for the pool's `node` (counted from 0), or kUnknownNode.
  int node_index(int node) const { return nodes_[static_cast<size_t>(node)].node; }

  std::vector<int> threads_per_node() const;

  // Permanently names and pins the calling thread as the pool's first one. For the thread that will make all
  // calls. It must not start other threads, because they would inherit its CPU. Returns the reason if the
  // thread could not be pinned, otherwise an empty string.
  std::string adopt_caller();

  // The reason why a thread of the pool could not be pinned (for the first such thread); empty if all are.
  const std::string& pin_refusal() const { return pin_refusal_; }

  // Calls task(index) once for each index in 0…count, in any order and on any thread, and returns when all
  // are done. The first exception of a task cancels the tasks that have not begun and is rethrown here. Calls
  // from several threads are serialized. A call from inside a task fails a check, because it would deadlock.
  template <class Task>
  void parallel_for(int64_t count, const Task& task) {
    run(&count, 1,
        {&task, [](const void* self, int, int64_t index) { (*static_cast<const Task*>(self))(index); }});
  }

  // Calls task(node, index) once for each index in 0…counts[node] of each node (counted from 0) on a thread
  // of that node, so that the task can touch memory first or read local memory. Otherwise as parallel_for.
  // `counts` has num_nodes() entries.
  template <class Task>
  void parallel_for_nodes(const std::vector<int64_t>& counts, const Task& task) {
    run(counts.data(), counts.size(), {&task, [](const void* self, int node, int64_t index) {
                                         (*static_cast<const Task*>(self))(node, index);
                                       }});
  }

  // Claims the loop's next task for the calling thread before it finishes its current one, so that data of
  // the next task can be prefetched. Returns the same task when called again. Returns kNoTask outside a task,
  // and when the number of remaining tasks is at most the number of threads (the first free thread takes
  // those).
  static constexpr int64_t kNoTask = -1;
  static int64_t claim_next();

  // Between the two calls, the times of every loop that is opened to other threads are recorded.
  void start_recording();
  std::vector<LoopTimes> stop_recording();

 private:
  struct Job {
    const void* task = nullptr;
    void (*call)(const void* task, int node, int64_t index) = nullptr;
  };

  // The task indices of a loop, taken one by one: those of one node, or those that any thread may take.
  struct alignas(64) TaskQueue {
    std::atomic<int64_t> next{0};
    int64_t count = 0;
  };

  // The state of one thread that processes a queue.
  struct QueueWork {
    TaskQueue& queue;
    int num_threads;  // that process the queue
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
  std::mutex turn_;  // held during a parallel_for

  // The gate of the current job: epoch, whether it is open, number of workers inside. The caller writes the
  // members below only while no worker is inside, so it need not wait for workers that wake late.
  std::atomic<uint64_t> gate_{0};
  Job job_;
  std::vector<TaskQueue> queues_;
  bool by_node_ = false;  // each node processes its own queue; otherwise all process the first
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;  // of the task that set failed_
  LoopRecorder recorder_;

  std::atomic<bool> stopping_{false};
  EventCount job_opened_;
  EventCount caller_may_go_on_;
  std::atomic<int> num_keeping_awake_{0};
  std::atomic<uint64_t> num_wake_ups_{0};  // number of KeepAwake instances so far
};

}  // namespace ballast
