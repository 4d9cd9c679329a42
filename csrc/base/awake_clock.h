// Time that passes while this process runs, for limits of what the process itself must do or see.
//
// A process may stand still for minutes, by SIGSTOP or with its whole machine, and the system's clock goes
// on. A limit by that clock would have run out afterwards, without anything having had its time.
#pragma once

#include <algorithm>
#include <chrono>

namespace ballast {

// For one thread, which reads it every now and then: a longer gap than `longest` between two readings is
// taken for a pause, and counts as that.
class AwakeClock {
 public:
  using Clock = std::chrono::steady_clock;

  explicit AwakeClock(Clock::duration longest) : longest_(longest) {}
  // For one wait of `limit`, of which a pause takes an eighth at most. To be read ten times in it.
  static AwakeClock for_limit(Clock::duration limit) { return AwakeClock(limit / 8); }

  // Since it was made.
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
