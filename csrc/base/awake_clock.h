// Time during which this process runs, for limits on actions of the process itself.
//
// A process may be stopped for minutes, by SIGSTOP or with its whole machine, while the system's clock
// continues. A limit measured by that clock would have expired although nothing had time to run.
#pragma once

#include <algorithm>
#include <chrono>

namespace ballast {

// For one thread, which reads it regularly: a gap between two readings that is longer than `longest` counts
// as a pause of length `longest`.
class AwakeClock {
 public:
  using Clock = std::chrono::steady_clock;

  explicit AwakeClock(Clock::duration longest) : longest_(longest) {}
  // For one wait of `limit`, where a pause counts for at most an eighth. Read it at least ten times per
  // limit.
  static AwakeClock for_limit(Clock::duration limit) { return AwakeClock(limit / 8); }

  // Time since construction.
  Clock::duration now() {
    const Clock::time_point now = Clock::now();
    awake_ += std::min(now - last_, longest_);
    last_ = now;
    return awake_;
  }

 private:
  Clock::duration longest_;
  Clock::duration awake_{0};
  Clock::time_point last_ = Clock::now();
};

}  // namespace ballast
