// The steps in progress, at most one per lane.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "sched/steps/step_planner.h"
#include "sched/types/lane.h"
#include "sched/types/plan.h"
#include "sched/types/request.h"

namespace ballast {

class OutstandingSteps {
 public:
  struct Step {
    std::shared_ptr<Plan> plan;  // null: none is outstanding
    std::vector<Request*> rows;
    std::optional<double> began_s;
    // Whether the other lane computed when this began or, for a pass, at any time since.
    bool is_shared = false;
    bool is_mixed = false;  // whether a pass began or ended during this step of the decode lane

    bool computes() const { return !rows.empty(); }
  };

  const Step& operator[](Lane lane) const { return steps_[static_cast<size_t>(lane)]; }
  bool computes(Lane lane) const { return (*this)[lane].computes(); }

  void begin(Lane lane, std::shared_ptr<Plan> plan, std::vector<Request*> rows, std::optional<double> now_s);
  // Ends the step of a lane and returns it.
  Step end(Lane lane);

  // The steps as the planner's input; num_decode: requests that decode. Without now_s, each step is expected
  // to take its whole cost from now on.
  LaneState lane_state(int32_t num_decode, const StepPlanner& planner, std::optional<double> now_s) const;

 private:
  Step& at(Lane lane) { return steps_[static_cast<size_t>(lane)]; }
  double seconds_left(Lane lane, const StepPlanner& planner, std::optional<double> now_s) const;

  std::array<Step, 2> steps_;  // by lane
};

}  // namespace ballast
