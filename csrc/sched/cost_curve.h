// What a step costs, as measured at some sizes.
#pragma once

#include <cstdint>
#include <vector>

namespace ballast {

struct CostPoint {
  int32_t tokens;  // of a step
  double seconds;  // that it takes
};

// Linear between its points, and beyond the last one as between the last two; before the first one constant.
// Without points nothing is known, and everything costs nothing.
class CostCurve {
 public:
  CostCurve() = default;
  // Throws std::invalid_argument unless tokens ascend from 1 or more and seconds are finite, not negative and
  // do not descend; `name` begins the message.
  CostCurve(const char* name, std::vector<CostPoint> points);

  bool empty() const { return points_.empty(); }
  double seconds(int32_t tokens) const;
  // The most tokens, `most` at most, whose step takes no longer than `seconds`; 0 where one token does.
  int32_t tokens_within(double seconds, int32_t most) const;

 private:
  std::vector<CostPoint> points_;
};

}  // namespace ballast
