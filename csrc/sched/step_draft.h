// The step that is being planned.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "sched/request_blocks.h"
#include "sched/types/lane.h"
#include "sched/types/request.h"

namespace ballast {

class StepDraft {
 public:
  // scored_tokens: the most tokens of a step with scored prompts, whose logits for all tokens are in memory
  // at the same time.
  StepDraft(Lane lane, int32_t scored_tokens, RequestBlocks& blocks)
      : lane_(lane), scored_tokens_(scored_tokens), blocks_(blocks) {}

  Lane lane() const { return lane_; }
  int32_t num_tokens() const { return num_tokens_; }
  // Prompt tokens that the step may still take.
  int32_t budget() const { return budget_; }
  void set_budget(int32_t budget) { budget_ = budget; }

  // The number of tokens of `budget` that a request may take, 0 or more.
  int32_t allowance(const Request& request, int32_t budget) const {
    if (!request.scores_prompt) return budget;
    return std::max(0, std::min(budget, scored_tokens_ - num_tokens_));
  }

  // Adds num_tokens more of a request, 0 or more. The cache must have room for them.
  void add(Request& request, int32_t num_tokens) {
    request.num_planned += num_tokens;
    blocks_.acquire(request, request.num_planned);
    blocks_.acquire_windows(request, request.num_planned);
    request.num_planned_ahead = 0;
    request.lane = lane_;
    budget_ -= num_tokens;
    num_tokens_ += num_tokens;
  }

  // The first request whose prompt this step does not complete; null: none so far.
  const Request* part_way() const { return part_way_; }
  void set_part_way(const Request* request) { part_way_ = request; }

  const std::vector<SeqId>& preempted() const { return preempted_; }
  void note_preempted(SeqId seq) { preempted_.push_back(seq); }
  bool has_preempted(SeqId seq) const {
    return std::find(preempted_.begin(), preempted_.end(), seq) != preempted_.end();
  }

 private:
  Lane lane_;
  int32_t scored_tokens_;
  RequestBlocks& blocks_;
  int32_t budget_ = 0, num_tokens_ = 0;
  const Request* part_way_ = nullptr;
  std::vector<SeqId> preempted_;
};

}  // namespace ballast
