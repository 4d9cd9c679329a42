// What steps of both lanes cost: measured at start, then updated by the steps that run.
#pragma once

#include <cstdint>

#include "sched/config.h"
#include "sched/cost_curve.h"
#include "sched/lane.h"

namespace ballast {

class StepCosts {
 public:
  explicit StepCosts(const SchedulerConfig& config)
      : decode_(config.decode_costs), decode_in_pass_(config.decode_costs), prefill_(config.prefill_costs) {}

  // False if nothing was measured; every step costs 0 then.
  bool are_known() const { return !decode_.empty(); }
  // A decode-lane step runs slower while a prefill pass uses the bus: `in_pass` selects that curve.
  const CostCurve& decode(bool in_pass = false) const { return in_pass ? decode_in_pass_ : decode_; }
  const CostCurve& prefill() const { return prefill_; }

  void observe(Lane lane, bool in_pass, int32_t num_tokens, double seconds) {
    (lane == Lane::kPrefill ? prefill_ : in_pass ? decode_in_pass_ : decode_).observe(num_tokens, seconds);
  }

 private:
  CostCurve decode_, decode_in_pass_, prefill_;
};

}  // namespace ballast
