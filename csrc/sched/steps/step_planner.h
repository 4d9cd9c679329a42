// Decides how prompts are divided into steps: which lane computes each, and how many prompt tokens a step
// takes. Pure: results depend only on the limits, the costs and the arguments.
#pragma once

#include <cstdint>
#include <vector>

#include "sched/steps/step_costs.h"
#include "sched/types/config.h"
#include "sched/types/lane.h"

namespace ballast {

// A waiting prompt may start while another one is partly computed if its length, times this, is at most the
// number of tokens that the other one has left.
inline constexpr int32_t kJoiningShare = 4;

// The state of both lanes when a step is planned.
struct LaneState {
  int32_t num_decode = 0;       // requests that decode
  double decode_lane_s = 0.0;   // until the outstanding step of the decode lane ends; 0: there is none
  double prefill_lane_s = 0.0;  // until the outstanding pass ends; 0: there is none
  bool uses_link = false;       // whether the outstanding step of the decode lane does

  bool in_pass() const { return prefill_lane_s > 0.0; }
};

class StepPlanner {
 public:
  explicit StepPlanner(const SchedulerConfig& config) : config_(config), costs_(config) {}

  StepCosts& costs() { return costs_; }
  const StepCosts& costs() const { return costs_; }

  // Whether a decode-lane step with num_tokens, prompts among them, uses the link to the device.
  bool uses_link(int32_t num_tokens, bool in_pass) const {
    const auto& joint = config_.joint_tokens;
    return joint && num_tokens >= joint->first && num_tokens <= joint->second && !in_pass;
  }

  // The most prompt tokens of a decode-lane step with `num_decode` decoding requests, while `num_prompts`
  // prompts are to be computed in that lane. The decoding requests wait at most max_stall_s for the prompts.
  // If that is not set and more prompts wait than requests decode, the limit grows by their ratio, because
  // short steps would delay many prompts in favour of a few decoding requests. At least one token, unless
  // chunk_size leaves no room. num_draft_tokens: tokens that the decoding requests compute beyond one each.
  int32_t prompt_budget(int32_t num_decode, int32_t num_prompts, bool in_pass = false,
                        int32_t num_draft_tokens = 0) const;

  // The lane of each prompt, given the numbers of tokens that are not computed yet, in the order of service.
  // It minimises the sum of the times of first tokens over all divisions that give the decode lane the k
  // shortest prompts: computed one step after another there, or all together in passes of the prefill lane.
  std::vector<Lane> assign_lanes(const LaneState& state, const std::vector<int32_t>& prompts) const;

  // Whether a pass over num_prompts waiting prompts should wait until a further slot is free, if more
  // requests wait than slots are free. A pass slows the decoding requests down, so it should wait as long as
  // the time that the prompts lose (held_s plus one release_interval_s each) is less than the time that the
  // decoding requests gain from one pass fewer.
  bool holds_pass(int32_t num_decode, int32_t num_prompts, double held_s, double release_interval_s) const;

  // The objective of assign_lanes: the sum of the seconds until each prompt's first token.
  double sum_of_first_tokens(const LaneState& state, const std::vector<int32_t>& prompts,
                             const std::vector<Lane>& lanes) const;

  // Seconds until prompts of num_tokens in total are computed with num_decode decoding requests, in the lane
  // that is faster for them; 0 if no costs are known.
  double prompt_seconds(int32_t num_tokens, int32_t num_decode) const;

  // Most tokens of a decode-lane step in which nothing decodes.
  int32_t idle_chunk() const;

 private:
  struct DecodeLane {
    double sum_s;        // of the times of first tokens
    double link_busy_s;  // until the link to the device is free for a pass
  };
  DecodeLane decode_lane(const LaneState& state, std::vector<int32_t> prompts, bool passes_follow) const;
  double prefill_lane_sum(const CostCurve& costs, double begin_s, const std::vector<int32_t>& prompts) const;

  SchedulerConfig config_;
  StepCosts costs_;
};

}  // namespace ballast
