#include "sched/steps/outstanding_steps.h"

#include <algorithm>

namespace ballast {

namespace {

// An overdue step is expected to need this fraction of its cost once more.
constexpr double kOverdueStepShare = 0.1;

}  // namespace

void OutstandingSteps::begin(Lane lane, std::shared_ptr<Plan> plan, std::vector<Request*> rows,
                             std::optional<double> now_s) {
  if (!rows.empty()) {
    if (lane == Lane::kPrefill) at(Lane::kDecode).is_mixed = true;
    if (lane == Lane::kDecode) at(Lane::kPrefill).is_shared = true;
  }
  const bool is_shared = computes(lane == Lane::kDecode ? Lane::kPrefill : Lane::kDecode);
  at(lane) = {std::move(plan), std::move(rows), now_s, is_shared, false};
}

OutstandingSteps::Step OutstandingSteps::end(Lane lane) {
  if (lane == Lane::kPrefill) at(Lane::kDecode).is_mixed = true;
  return std::exchange(at(lane), {});
}

double OutstandingSteps::seconds_left(Lane lane, const StepPlanner& planner,
                                      std::optional<double> now_s) const {
  const Step& step = (*this)[lane];
  if (!step.computes()) return 0.0;
  const double cost_s = planner.costs().of(lane, step.is_shared).seconds(step.plan->num_tokens());
  if (!now_s || !step.began_s) return cost_s;
  return std::max(cost_s - (*now_s - *step.began_s), kOverdueStepShare * cost_s);
}

LaneState OutstandingSteps::lane_state(int32_t num_decode, const StepPlanner& planner,
                                       std::optional<double> now_s) const {
  LaneState state{num_decode, seconds_left(Lane::kDecode, planner, now_s),
                  seconds_left(Lane::kPrefill, planner, now_s)};
  const Step& step = (*this)[Lane::kDecode];
  if (step.computes()) {
    const bool has_prompts = step.plan->num_decode < step.plan->num_requests();
    state.uses_link = has_prompts && planner.uses_link(step.plan->num_tokens(), step.is_shared);
  }
  return state;
}

}  // namespace ballast
