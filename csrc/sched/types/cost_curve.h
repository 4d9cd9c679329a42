// The cost of a step as a function of its number of tokens, measured at some sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ballast {

struct CostPoint {
  int32_t tokens;  // in the step
  double seconds;  // for the step
};

// Piecewise linear between its points; constant before the first one; beyond the last one it continues the
// last segment. A curve without points is unknown and returns 0 for every step.
class CostCurve {
 public:
  CostCurve() = default;
  // Throws std::invalid_argument unless tokens ascend from 1 or more and seconds are finite, not negative and
  // do not descend; `name` begins the message.
  CostCurve(const char* name, std::vector<CostPoint> points);

  bool empty() const { return points_.empty(); }
  const std::vector<CostPoint>& points() const { return points_; }
  double seconds(int32_t tokens) const;
  // The largest number of tokens, at most `most`, whose step takes no longer than `seconds`; 0 if even one
  // token takes longer.
  int32_t tokens_within(double seconds, int32_t most) const;

  // Moves the points around `tokens` a little towards the observed time of one step. Seconds still ascend,
  // and a point stays within a factor of 8 of its first value, so that no pause of the machine distorts the
  // curve.
  void observe(int32_t tokens, double seconds);

 private:
  void scale(size_t point, double factor);

  std::vector<CostPoint> points_;
  std::vector<double> measured_s_;  // seconds of the points as given
};

}  // namespace ballast
