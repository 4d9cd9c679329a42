// The CPU time that the worker of a pool of two threads has used: a clock that stops while the worker sleeps,
// independent of other programs.
#pragma once

#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "check.h"
#include "threads/thread_pool.h"

class WorkerClock {
 public:
  explicit WorkerClock(ballast::ThreadPool& pool) {
    std::atomic<bool> joined{false};
    const std::thread::id caller = std::this_thread::get_id();
    pool.parallel_for(2, [&](int64_t) {
      if (std::this_thread::get_id() != caller) {
        pthread_getcpuclockid(pthread_self(), &clock_);
        status_ = "/proc/self/task/" + std::to_string(syscall(SYS_gettid)) + "/status";
        joined = true;
      }
      while (!joined && std::chrono::steady_clock::now() < limit_) std::this_thread::yield();
    });
    EXPECT(joined.load());
  }

  double microseconds() const {
    timespec time{};
    clock_gettime(clock_, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
  }

  // Waits until it has used CPU time after `before`; returns false on a timeout.
  bool has_moved_on(double before) const {
    while (microseconds() == before && std::chrono::steady_clock::now() < limit_) std::this_thread::yield();
    return microseconds() > before;
  }

  // How often other threads preempted it.
  long times_interrupted() const {
    const std::string name = "nonvoluntary_ctxt_switches:";
    std::ifstream status(status_);
    for (std::string line; std::getline(status, line);) {
      if (line.compare(0, name.size(), name) == 0) return std::stol(line.substr(name.size()));
    }
    EXPECT(false);
    return 0;
  }

  // Waits until the worker sleeps: its clock has not changed for 20 ms, in which a spinning thread would have
  // been scheduled. Returns the clock's value.
  double once_asleep() const {
    double now = microseconds();
    for (double last = -1.0; last != now && std::chrono::steady_clock::now() < limit_;) {
      last = now;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      now = microseconds();
    }
    EXPECT(std::chrono::steady_clock::now() < limit_);
    return now;
  }

 private:
  const std::chrono::steady_clock::time_point limit_ =
      std::chrono::steady_clock::now() + std::chrono::seconds(60);
  clockid_t clock_ = 0;
  std::string status_;
};
