// A fixed set of threads that share out the indices of one loop at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace ballast {

class ThreadPool {
 public:
  static constexpr int kMaxThreads = 1024;

  // num_threads counts the thread that calls parallel_for, which works too: 1 starts no thread at all.
  // Throws std::invalid_argument outside 1…kMaxThreads, std::runtime_error when the system gives no more
  // threads.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls task(index) once for each index in 0…count, in any order and on any thread, and returns when all
  // are done. The first exception of a task cancels the indices not yet begun and is thrown here. Calls from
  // several threads take turns; a call from inside a task breaks an invariant (it could never finish).
  template <class Task>
  void parallel_for(int64_t count, const Task& task) {
    run(count, {&task, [](const void* self, int64_t index) { (*static_cast<const Task*>(self))(index); }});
  }

 private:
  struct Job {
    const void* task = nullptr;
    void (*call)(const void* task, int64_t index) = nullptr;
  };

  void run(int64_t count, Job job);
  void worker();
  bool join_job(uint64_t& seen_epoch);
  void leave_job();
  void drain();
  void stop_workers();

  const int num_threads_;
  std::vector<std::thread> workers_;
  std::mutex turn_;  // held for a whole parallel_for

  // The gate of the current job: epoch, whether it is open, how many workers are inside. Everything under it
  // is written by the caller while no worker is inside, so that a worker which wakes late is not waited for.
  std::atomic<uint64_t> gate_{0};
  Job job_;
  int64_t count_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;  // of the task that set failed_

  std::atomic<bool> stopping_{false};
  std::mutex sleep_;
  std::condition_variable job_opened_;
  std::condition_variable workers_left_;
};

}  // namespace ballast
