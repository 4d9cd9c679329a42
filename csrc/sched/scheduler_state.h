// The state that the parts of the scheduler share: live requests, their slots and blocks, and step costs.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "base/ids.h"
#include "kv/block_manager.h"
#include "sched/queue/fair_queue.h"
#include "sched/request_blocks.h"
#include "sched/request_states.h"
#include "sched/running_set.h"
#include "sched/steps/step_planner.h"
#include "sched/tiers/tier_mirror.h"
#include "sched/types/config.h"
#include "sched/types/request.h"

namespace ballast {

// Each live request is either in `queue` or in `running`.
struct SchedulerState {
  explicit SchedulerState(const SchedulerConfig& limits)
      : config((limits.validate(), limits)),
        planner(config),
        blocks(config.num_blocks, config.block_tokens, config.prefix_cache, config.window, config.states),
        tiers(config, blocks),
        request_blocks(config.block_tokens, blocks, tiers),
        request_states(config.block_tokens, config.max_batch_size, blocks, tiers),
        running(config.max_batch_size) {}
  SchedulerState(const SchedulerState&) = delete;  // its members refer to each other
  SchedulerState& operator=(const SchedulerState&) = delete;

  const SchedulerConfig config;
  StepPlanner planner;
  BlockManager blocks;
  TierMirror tiers;
  RequestBlocks request_blocks;
  RequestStates request_states;
  std::unordered_map<SeqId, std::unique_ptr<Request>> requests;  // for look-ups by id; never iterated
  FairQueue queue;
  RunningSet running;
  int32_t num_decode = 0;  // requests that decode, as of the last plan
  int64_t prefix_query_tokens = 0, prefix_hit_tokens = 0, prefix_cut_tokens = 0;
};

}  // namespace ballast
