// Decides which lane computes each prompt, and whether a pass of the prefill lane waits for more prompts.
#pragma once

#include <cstdint>
#include <optional>

#include "sched/admission.h"
#include "sched/scheduler_state.h"
#include "sched/steps/step_planner.h"
#include "sched/types/lane.h"
#include "sched/types/request.h"

namespace ballast {

class PromptLanes {
 public:
  // `state` and `admission` must outlive this.
  PromptLanes(SchedulerState& state, const Admission& admission) : state_(state), admission_(admission) {}

  // Divides the prompts that could be computed now between the lanes: those of running requests, and of as
  // many waiting ones as slots and blocks are free for. With two lanes no other waiting request is admitted,
  // so requests that wait for the other lane keep their slots. Returns the number of prompts in `lane`.
  int32_t assign(const LaneState& lanes, Lane lane);
  // Whether the next step of `lane` computes a request's prompt, as of the last assign().
  bool is_assigned(const Request& request, Lane lane) const;

  // Whether the prompts of the prefill lane wait for further ones, for which slots become free soon. Without
  // now_s they do not.
  bool holds_pass(std::optional<double> now_s, double release_interval_s);

 private:
  SchedulerState& state_;
  const Admission& admission_;
  int64_t num_assignments_ = 0;
  std::optional<double> held_since_s_;  // since when a pass waits
};

}  // namespace ballast
