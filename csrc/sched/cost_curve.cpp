#include "sched/cost_curve.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

namespace ballast {

CostCurve::CostCurve(const char* name, std::vector<CostPoint> points) : points_(std::move(points)) {
  CostPoint last{0, 0.0};
  for (const CostPoint& point : points_) {
    if (point.tokens <= last.tokens || !std::isfinite(point.seconds) || point.seconds < last.seconds) {
      throw std::invalid_argument(std::string(name) + " has a step of " + std::to_string(point.tokens) +
                                  " tokens in " + std::to_string(point.seconds) + " s after one of " +
                                  std::to_string(last.tokens) + " in " + std::to_string(last.seconds) +
                                  " s; tokens must ascend and seconds must not descend");
    }
    last = point;
  }
}

double CostCurve::seconds(int32_t tokens) const {
  if (points_.empty()) return 0.0;
  if (points_.size() == 1 || tokens <= points_.front().tokens) return points_.front().seconds;
  // The first point from `tokens` on, or the last one, and the point before it.
  auto after = std::find_if(points_.begin() + 1, points_.end() - 1,
                            [&](const CostPoint& point) { return point.tokens >= tokens; });
  const CostPoint& a = *(after - 1);
  const CostPoint& b = *after;
  return a.seconds + (b.seconds - a.seconds) * (tokens - a.tokens) / (b.tokens - a.tokens);
}

int32_t CostCurve::tokens_within(double seconds, int32_t most) const {
  int32_t within = 0, beyond = std::max(0, most) + 1;
  while (beyond - within > 1) {
    const int32_t middle = within + (beyond - within) / 2;
    (this->seconds(middle) <= seconds ? within : beyond) = middle;
  }
  return within;
}

}  // namespace ballast
