#include "sched/types/cost_curve.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

namespace ballast {

namespace {

// Weight of one observation; about 1 / kSmoothing steps move a point to a new level.
constexpr double kSmoothing = 0.1;
// One observation counts as at most this factor faster or slower than expected.
constexpr double kMostChange = 2.0;
// A point stays within this factor of its first value.
constexpr double kMostDrift = 8.0;

}  // namespace

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
    measured_s_.push_back(point.seconds);
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

void CostCurve::observe(int32_t tokens, double seconds) {
  const double expected_s = this->seconds(tokens);
  if (points_.empty() || expected_s <= 0.0 || !std::isfinite(seconds) || seconds <= 0.0) return;
  const double ratio = std::clamp(seconds / expected_s, 1.0 / kMostChange, kMostChange);
  const auto after = std::find_if(points_.begin(), points_.end(),
                                  [&](const CostPoint& point) { return point.tokens >= tokens; });
  const size_t index = static_cast<size_t>(after - points_.begin());
  const auto moved = [&](double weight) { return 1.0 + kSmoothing * weight * (ratio - 1.0); };
  if (index == 0 || index == points_.size()) {
    scale(index == 0 ? 0 : index - 1, moved(1.0));
    return;
  }
  const CostPoint a = points_[index - 1], b = points_[index];
  const double of_b = static_cast<double>(tokens - a.tokens) / (b.tokens - a.tokens);
  scale(index - 1, moved(1.0 - of_b));
  scale(index, moved(of_b));
}

// Scales one point; points before it become no slower and points after it no faster than it is then.
void CostCurve::scale(size_t point, double factor) {
  const double first_s = measured_s_[point];
  const double scaled_s =
      std::clamp(points_[point].seconds * factor, first_s / kMostDrift, first_s * kMostDrift);
  points_[point].seconds = scaled_s;
  for (size_t i = 0; i < point; ++i) points_[i].seconds = std::min(points_[i].seconds, scaled_s);
  for (size_t i = point + 1; i < points_.size(); ++i) {
    points_[i].seconds = std::max(points_[i].seconds, scaled_s);
  }
}

}  // namespace ballast
