// How often slots of the batch become free.
#pragma once

#include <cstdint>
#include <optional>

namespace ballast {

class SlotReleases {
 public:
  // `count` requests ended at `now_s`.
  void note(int32_t count, double now_s) {
    if (count == 0) return;
    if (last_s_) {
      const double interval_s = (now_s - *last_s_) / count;
      interval_s_ =
          interval_s_ == 0.0 ? interval_s : (1.0 - kSmoothing) * interval_s_ + kSmoothing * interval_s;
    }
    last_s_ = now_s;
  }

  // The batch is empty: the time until the next release is not counted.
  void pause() { last_s_.reset(); }

  // Mean seconds between two releases, of the latest ones; 0 before the second one.
  double interval_s() const { return interval_s_; }

 private:
  static constexpr double kSmoothing = 0.2;

  std::optional<double> last_s_;
  double interval_s_ = 0.0;
};

}  // namespace ballast
