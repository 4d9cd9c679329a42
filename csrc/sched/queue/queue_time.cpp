#include "sched/queue/queue_time.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace ballast {

namespace {

// Most simulated steps. A load that needs more gets the time reached so far.
constexpr int kMostSteps = 20000;
// Most waiting prompts that the planner considers in one simulated step.
constexpr size_t kMostCandidates = 16;
// A reply longer than the mean is expected to need this fraction of the mean once more.
constexpr double kOverdueShare = 0.25;

bool comes_before(const QueueState::Waiting& a, const QueueState::Waiting& b) {
  return a.priority != b.priority ? a.priority < b.priority : a.turn < b.turn;
}

// Both lanes, stepped until one waiting request gets its first step.
class Simulation {
 public:
  Simulation(const SchedulerConfig& config, const StepPlanner& planner, const LaneState& lanes,
             std::vector<QueueState::Running> running, const std::vector<QueueState::Waiting>& waiting,
             size_t target, double release_interval_s)
      : config_(config),
        planner_(planner),
        running_(std::move(running)),
        waiting_(waiting),
        target_(target),
        release_interval_s_(release_interval_s) {
    for (const auto& each : running_) num_tokens_ += each.num_tokens;
    end_s_[0] = lanes.decode_lane_s > 0.0 ? lanes.decode_lane_s : kIdle;
    end_s_[1] = lanes.prefill_lane_s > 0.0 ? lanes.prefill_lane_s : kIdle;
    uses_link_ = lanes.uses_link;
  }

  double run(double horizon_s) {
    for (int count = 0; count < kMostSteps && now_s_ <= horizon_s; ++count) {
      const bool begins_decode = end_s_[0] == kIdle;
      if (begins_decode && begin(Lane::kDecode)) return now_s_;
      const bool may_pass =
          config_.has_prefill_lane() && end_s_[1] == kIdle && !(uses_link_ && end_s_[0] != kIdle);
      if (may_pass && begin(Lane::kPrefill)) return now_s_;
      if (begins_decode && end_s_[0] != kIdle && only_decodes_) {
        const double step_s = end_s_[0] - now_s_;
        num_steps_ = steps_until_change(step_s);
        end_s_[0] = now_s_ + num_steps_ * step_s;
      }
      const double next_s = std::min(end_s_[0], end_s_[1]);
      if (next_s == kIdle) return now_s_;  // only memory is missing; nothing here frees any
      now_s_ = next_s;
      if (end_s_[0] <= now_s_) end(Lane::kDecode);
      if (end_s_[1] <= now_s_) end(Lane::kPrefill);
    }
    return now_s_;
  }

 private:
  static constexpr double kIdle = std::numeric_limits<double>::infinity();

  struct Candidate {
    size_t index;  // in running_ or waiting_
    bool is_waiting;
    int32_t tokens;
  };

  static bool decodes(const QueueState::Running& each) {
    return each.prompt_left == 0 && each.num_in_flight == 0;
  }

  // Plans the next step of a lane. Returns true if the target gets its first step in it.
  bool begin(Lane lane) {
    const int32_t num_decode = static_cast<int32_t>(std::count_if(running_.begin(), running_.end(), decodes));
    std::vector<Candidate> candidates;
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < running_.size(); ++i) {
      if (running_[i].prompt_left == 0 || running_[i].num_in_flight > 0) continue;
      candidates.push_back({i, false, running_[i].prompt_left});
      tokens.push_back(running_[i].prompt_left);
    }
    const size_t num_free = static_cast<size_t>(
        std::max<int64_t>(0, config_.max_batch_size - static_cast<int64_t>(running_.size())));
    const size_t num_seen = std::min({num_free, kMostCandidates, waiting_.size()});
    for (size_t i = 0; i < num_seen; ++i) {
      candidates.push_back({i, true, waiting_[i].prompt_tokens});
      tokens.push_back(candidates.back().tokens);
    }
    LaneState state;
    state.num_decode = num_decode;
    state.decode_lane_s = end_s_[0] == kIdle ? 0.0 : end_s_[0] - now_s_;
    state.prefill_lane_s = end_s_[1] == kIdle ? 0.0 : end_s_[1] - now_s_;
    state.uses_link = uses_link_ && end_s_[0] != kIdle;
    const std::vector<Lane> lanes = planner_.assign_lanes(state, tokens);
    const int32_t num_prompts = static_cast<int32_t>(std::count(lanes.begin(), lanes.end(), lane));
    const int32_t budget = lane == Lane::kDecode
                               ? planner_.prompt_budget(num_decode, num_prompts, state.in_pass())
                               : config_.prefill_chunk_size;
    if (lane == Lane::kPrefill && holds_pass(candidates, lanes, num_decode, num_free)) return false;
    int32_t left = std::max(0, budget), part_way_left = -1;
    size_t part_way = 0, num_skipped = 0;
    std::vector<size_t> started;
    for (size_t i = 0; i < candidates.size() && left > 0; ++i) {
      const Candidate& each = candidates[i];
      if (lanes[i] != lane) {
        num_skipped += each.is_waiting;
        continue;
      }
      if (each.is_waiting) {
        if (part_way_left >= 0 && each.tokens * kJoiningShare > part_way_left) {
          ++num_skipped;
          continue;
        }
        const QueueState::Waiting& request = waiting_[each.index];
        if (running_.size() + (num_skipped > 0) >= static_cast<size_t>(config_.max_batch_size)) break;
        if (num_tokens_ + request.num_tokens + config_.block_tokens > config_.capacity_tokens()) break;
        if (each.index == target_) return true;
        started.push_back(each.index);
        num_tokens_ += request.num_tokens;
        running_.push_back({request.prompt_tokens, request.reply_tokens, request.num_tokens});
      }
      QueueState::Running& run = each.is_waiting ? running_.back() : running_[each.index];
      const bool is_first_part_way = part_way_left < 0 && each.tokens > left;
      const int32_t taken =
          std::min(each.tokens, is_first_part_way && !each.is_waiting ? left - left / 2 : left);
      run.num_in_flight = taken;
      run.lane = lane;
      left -= taken;
      if (is_first_part_way) {
        part_way = each.is_waiting ? running_.size() - 1 : each.index;
        part_way_left = each.tokens - taken;
      }
    }
    if (part_way_left > 0 && left > 0) {
      const int32_t more = std::min(part_way_left, left);
      running_[part_way].num_in_flight += more;
      left -= more;
    }
    remove_waiting(started);
    const int32_t num_prompt_tokens = std::max(0, budget) - left;
    if (lane == Lane::kPrefill) {
      const CostCurve& costs = planner_.costs().prefill(num_decode > 0 || end_s_[0] != kIdle);
      if (num_prompt_tokens > 0) end_s_[1] = now_s_ + costs.seconds(num_prompt_tokens);
      return false;
    }
    if (num_decode + num_prompt_tokens == 0) return false;
    only_decodes_ = num_prompt_tokens == 0;
    uses_link_ = !only_decodes_ && planner_.uses_link(num_decode + num_prompt_tokens, state.in_pass());
    num_steps_ = 1;
    end_s_[0] = now_s_ + planner_.costs().decode(state.in_pass()).seconds(num_decode + num_prompt_tokens);
    return false;
  }

  // As Scheduler::holds_pass.
  bool holds_pass(const std::vector<Candidate>& candidates, const std::vector<Lane>& lanes,
                  int32_t num_decode, size_t num_free) {
    int32_t num_prompts = 0;
    bool is_part_way = false;
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (lanes[i] != Lane::kPrefill) continue;
      num_prompts += candidates[i].is_waiting;
      is_part_way = is_part_way || !candidates[i].is_waiting;
    }
    if (num_prompts == 0 || is_part_way || waiting_.size() <= num_free ||
        !planner_.holds_pass(num_decode, num_prompts, now_s_ - held_since_s_.value_or(now_s_),
                             release_interval_s_)) {
      held_since_s_.reset();
      return false;
    }
    held_since_s_ = held_since_s_.value_or(now_s_);
    return true;
  }

  // Steps that only decode, until a reply ends or the outstanding pass does.
  int32_t steps_until_change(double step_s) const {
    int32_t count = std::numeric_limits<int32_t>::max();
    for (const auto& each : running_) {
      if (decodes(each)) count = std::min(count, std::max(1, each.reply_left));
    }
    if (end_s_[1] != kIdle && step_s > 0.0) {
      count = std::min(count, std::max(1, static_cast<int32_t>(std::ceil((end_s_[1] - now_s_) / step_s))));
    }
    return count;
  }

  void end(Lane lane) {
    end_s_[static_cast<size_t>(lane)] = kIdle;
    for (auto& each : running_) {
      if (lane == Lane::kDecode && decodes(each)) {
        const int32_t generated = std::min(num_steps_, each.reply_left);
        each.reply_left -= generated;
        each.num_tokens += generated;
        num_tokens_ += generated;
      } else if (each.num_in_flight > 0 && each.lane == lane) {
        each.prompt_left -= each.num_in_flight;
        each.num_in_flight = 0;
        if (each.prompt_left == 0) --each.reply_left;
      }
    }
    const auto is_over = [&](const QueueState::Running& each) {
      const bool is_done = each.prompt_left == 0 && each.reply_left <= 0;
      if (is_done) num_tokens_ -= each.num_tokens;
      return is_done;
    };
    running_.erase(std::remove_if(running_.begin(), running_.end(), is_over), running_.end());
  }

  // Indices ascend.
  void remove_waiting(const std::vector<size_t>& started) {
    for (auto index = started.rbegin(); index != started.rend(); ++index) {
      target_ -= *index < target_;
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(*index));
    }
  }

  const SchedulerConfig& config_;
  const StepPlanner& planner_;
  std::vector<QueueState::Running> running_;
  std::vector<QueueState::Waiting> waiting_;
  size_t target_;
  double release_interval_s_;
  std::optional<double> held_since_s_;
  int64_t num_tokens_ = 0;  // in the cache
  double now_s_ = 0.0;
  double end_s_[2];            // of the outstanding step of each lane
  int32_t num_steps_ = 1;      // that the outstanding decode-lane step stands for
  bool only_decodes_ = false;  // whether it computes no prompts
  bool uses_link_ = false;     // whether it keeps a pass from beginning
};

}  // namespace

int32_t ReplyLength::expected(int32_t num_generated, int32_t num_left) const {
  if (!mean_tokens) return num_left;
  const double left = std::max(*mean_tokens - num_generated, kOverdueShare * *mean_tokens);
  return std::max(1, std::min(num_left, static_cast<int32_t>(std::lround(left))));
}

QueueState::QueueState(const SchedulerConfig& config, const StepPlanner& planner, const LaneState& lanes,
                       ReplyLength reply, double release_interval_s)
    : config_(config),
      planner_(planner),
      lanes_(lanes),
      reply_(reply),
      release_interval_s_(release_interval_s) {}

size_t QueueState::insert(int32_t priority, int64_t client, int32_t prompt_tokens, int32_t max_tokens) {
  int64_t round = 0;
  for (const auto& [of, now] : rounds_) round = of == priority ? now : round;
  for (const Waiting& other : waiting_) {
    if (other.priority == priority && other.client == client) round = std::max(round, other.turn.round);
  }
  const int64_t number = std::numeric_limits<int64_t>::max() / 2 + num_arrived_++;  // after all known ones
  const Waiting request{priority,      client,        {round + 1, number},
                        prompt_tokens, prompt_tokens, reply_.expected(0, max_tokens)};
  const auto at = std::upper_bound(waiting_.begin(), waiting_.end(), request, comes_before);
  const auto index = at - waiting_.begin();
  waiting_.insert(at, request);
  return static_cast<size_t>(index);
}

void QueueState::arrive(int32_t priority, int64_t client, int32_t prompt_tokens, int32_t max_tokens) {
  insert(priority, client, prompt_tokens, max_tokens);
}

double QueueState::predicted_wait_s(int32_t priority, int64_t client, int32_t prompt_tokens,
                                    int32_t max_tokens, double horizon_s, double elapsed_s) const {
  if (!planner_.costs().are_known()) return 0.0;
  QueueState with = *this;
  // An outstanding step that is overdue is taken to end now.
  for (double* left_s : {&with.lanes_.decode_lane_s, &with.lanes_.prefill_lane_s}) {
    if (*left_s > 0.0) *left_s = std::max(*left_s - elapsed_s, 1e-6);
  }
  const size_t target = with.insert(priority, client, prompt_tokens, max_tokens);
  return Simulation(with.config_, with.planner_, with.lanes_, with.running_, with.waiting_, target,
                    release_interval_s_)
      .run(horizon_s);
}

}  // namespace ballast
