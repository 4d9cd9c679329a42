// Estimates how long a request would wait for its first step: the planner run forward over the current load.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "sched/steps/step_planner.h"
#include "sched/types/config.h"
#include "sched/types/fair_share.h"

namespace ballast {

// How long replies are expected to be.
struct ReplyLength {
  std::optional<double> mean_tokens =
      {};  // of replies that ended by themselves; none: as long as max_tokens allows

  // Tokens still expected of a reply that has num_generated tokens and may have num_left more.
  int32_t expected(int32_t num_generated, int32_t num_left) const;
};

// A copy of the load at one moment, independent of the scheduler afterwards. Requests that the scheduler does
// not know yet can be added.
class QueueState {
 public:
  struct Running {
    int32_t prompt_left;        // tokens to compute, those in flight included
    int32_t reply_left;         // tokens to generate
    int32_t num_tokens;         // tokens in the cache, prompt included
    int32_t num_in_flight = 0;  // prompt tokens in an outstanding step
    Lane lane = Lane::kDecode;  // the lane of that step
  };
  struct Waiting {
    int32_t priority;
    int64_t client;
    Turn turn;
    int32_t prompt_tokens;  // to compute
    int32_t num_tokens;     // that its blocks must hold at admission
    int32_t reply_tokens;
  };

  // release_interval_s: see SlotReleases.
  QueueState(const SchedulerConfig& config, const StepPlanner& planner, const LaneState& lanes,
             ReplyLength reply, double release_interval_s);

  // The scheduler's requests, in the order of service.
  void add_running(const Running& running) { running_.push_back(running); }
  void add_waiting(const Waiting& waiting) { waiting_.push_back(waiting); }
  void set_round(int32_t priority, int64_t round) { rounds_.emplace_back(priority, round); }

  // A request that arrives now; prompt_tokens are those that the prefix cache does not have.
  void arrive(int32_t priority, int64_t client, int32_t prompt_tokens, int32_t max_tokens);
  // Seconds until the first step of a request that arrives elapsed_s after this state was taken, or a value
  // beyond horizon_s if it takes longer.
  double predicted_wait_s(int32_t priority, int64_t client, int32_t prompt_tokens, int32_t max_tokens,
                          double horizon_s, double elapsed_s = 0.0) const;

 private:
  size_t insert(int32_t priority, int64_t client, int32_t prompt_tokens, int32_t max_tokens);

  SchedulerConfig config_;
  StepPlanner planner_;
  LaneState lanes_;
  ReplyLength reply_;
  double release_interval_s_;
  std::vector<Running> running_;
  std::vector<Waiting> waiting_;
  std::vector<std::pair<int32_t, int64_t>> rounds_;  // priority, current round
  int64_t num_arrived_ = 0;
};

}  // namespace ballast
