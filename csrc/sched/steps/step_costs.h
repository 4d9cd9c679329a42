// The costs of steps in both lanes: measured at start, then updated by the steps that run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "sched/types/config.h"
#include "sched/types/cost_curve.h"
#include "sched/types/lane.h"

namespace ballast {

class StepCosts {
 public:
  explicit StepCosts(const SchedulerConfig& config)
      : decode_(config.decode_costs),
        decode_in_pass_(slowed_by_pass(config)),
        prefill_(config.prefill_costs),
        prefill_during_decode_(slowed_by_decode(config.prefill_costs)) {}

  // False if nothing was measured; every step costs 0 then.
  bool are_known() const { return !decode_.empty(); }
  // A decode-lane step runs slower while a prefill pass uses the bus: `in_pass` selects that curve.
  const CostCurve& decode(bool in_pass = false) const { return in_pass ? decode_in_pass_ : decode_; }
  // A pass is slower too while the decode lane computes: both read the same memory.
  const CostCurve& prefill(bool during_decode = false) const {
    return during_decode ? prefill_during_decode_ : prefill_;
  }
  // The curve of a lane's steps; is_shared: whether the other lane computes at the same time.
  const CostCurve& of(Lane lane, bool is_shared) const {
    return lane == Lane::kPrefill ? prefill(is_shared) : decode(is_shared);
  }

  void observe(Lane lane, bool is_shared, int32_t num_tokens, double seconds) {
    CostCurve& alone = lane == Lane::kPrefill ? prefill_ : decode_;
    CostCurve& shared = lane == Lane::kPrefill ? prefill_during_decode_ : decode_in_pass_;
    (is_shared ? shared : alone).observe(num_tokens, seconds);
  }

 private:
  // Initial factors by which a pass slows a decode-lane step; the second one applies in addition if the step
  // would use the link to the device without the pass.
  static constexpr double kSlowdownInPass = 1.5, kSlowdownWithoutLink = 1.7;
  // Initial factor by which decode-lane steps slow a pass.
  static constexpr double kSlowdownDuringDecode = 1.4;

  static CostCurve slowed_by_decode(const CostCurve& prefill) {
    std::vector<CostPoint> points = prefill.points();
    for (CostPoint& point : points) point.seconds *= kSlowdownDuringDecode;
    return {"prefill_costs", std::move(points)};
  }

  static CostCurve slowed_by_pass(const SchedulerConfig& config) {
    std::vector<CostPoint> points = config.decode_costs.points();
    double last_s = 0.0;
    for (CostPoint& point : points) {
      point.seconds *= kSlowdownInPass;
      const auto& joint = config.joint_tokens;
      if (joint && point.tokens >= joint->first && point.tokens <= joint->second) {
        point.seconds *= kSlowdownWithoutLink;
      }
      point.seconds = last_s = std::max(last_s, point.seconds);
    }
    return {"decode_costs", std::move(points)};
  }

  CostCurve decode_, decode_in_pass_, prefill_, prefill_during_decode_;
};

}  // namespace ballast
