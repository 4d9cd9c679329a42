// Decides which waiting requests start in a step.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sched/scheduler_state.h"
#include "sched/step_draft.h"
#include "sched/types/request.h"

namespace ballast {

class PromptLanes;

// Requests start in the order of the queue. A request that waits for something other than room is skipped: it
// is assigned to the other lane, it waits for its leader, or it is long and another prompt is partly
// computed. The first skipped request keeps a slot and blocks reserved.
//
// A request that starts gets the blocks for all its tokens. If its prefix continues in a tier, it fetches: it
// has no slot and is in no step until its blocks have arrived.
class Admission {
 public:
  // Most waiting requests that a step considers; one takes a microsecond if nothing has changed.
  static constexpr size_t kMostConsidered = 64;

  // `state` must outlive this.
  explicit Admission(SchedulerState& state) : state_(state) {}

  // Starts requests while the draft has budget. `lanes` knows the lane of each prompt.
  void admit(StepDraft& draft, const PromptLanes& lanes);

  // Looks up the prefix of a waiting request in the cache and the tiers. Returns the number of tokens that
  // are left to compute.
  int32_t match(Request& request) const;
  // Whether a request waits until its leader has computed their prompt. A leader waits at most for room, and
  // no room is reserved for its followers at its expense, so this ends.
  bool waits_for_leader(const Request& request) const;
  // Blocks that a waiting request takes out of the free and cached ones that the request's match does not
  // count, see RequestBlocks::num_to_admit.
  int32_t num_new_blocks(const Request& request) const;

 private:
  bool fits_in_step(Request& request, const StepDraft& draft, const PromptLanes& lanes) const;
  bool leader_has_no_slot(const Request& request) const;
  bool waits_to_fetch(const Request& request) const;
  void start(Request& request, StepDraft& draft);

  SchedulerState& state_;
};

}  // namespace ballast
