#include "sched/types/config.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace ballast {

namespace {

void require(bool works, const char* field, int64_t value, const std::string& fix) {
  if (!works) throw std::invalid_argument(std::string(field) + "=" + std::to_string(value) + ": " + fix);
}

}  // namespace

void SchedulerConfig::validate() const {
  require(num_blocks >= 1, "num_blocks", num_blocks, "at least 1 block is needed");
  require(block_tokens >= 1, "block_tokens", block_tokens, "a block holds at least 1 token");
  require((int64_t{num_blocks} + 1) * block_tokens <= std::numeric_limits<int32_t>::max(), "num_blocks",
          num_blocks,
          "with block_tokens=" + std::to_string(block_tokens) + " the slots do not fit in 32 bits");
  require(max_batch_size >= 1, "max_batch_size", max_batch_size, "at least 1 request must run");
  require(chunk_size >= max_batch_size, "chunk_size", chunk_size,
          "at least max_batch_size=" + std::to_string(max_batch_size) +
              ", one token for each request that decodes");
  require(prefill_chunk_size >= 1, "prefill_chunk_size", prefill_chunk_size,
          "a step computes at least 1 token");
  require(!joint_tokens || (joint_tokens->first >= 1 && joint_tokens->first <= joint_tokens->second),
          "joint_tokens", joint_tokens ? joint_tokens->first : 0,
          "a range of tokens, from 1 or more, that ends after it begins");
  require(!max_stall_s || *max_stall_s >= 0.0, "max_stall_s", static_cast<int64_t>(max_stall_s.value_or(0.0)),
          "prompts cannot make a step shorter; use 0 or more");
  require(tiers.empty() || prefix_cache, "tiers", static_cast<int64_t>(tiers.size()),
          "tiers mirror the prefix cache; enable prefix_cache or use no tiers");
  for (const TierConfig& tier : tiers) {
    require(tier.num_blocks >= 1, "tiers", tier.num_blocks, "a tier has at least 1 block");
    require(tier.most_storing >= 1, "tiers", tier.most_storing, "a tier needs at least 1 block in transfer");
    require(tier.num_states == 0 || (states.num_slots > 0 && tier.num_states > 0), "state_tiers",
            tier.num_states, "use 0 for a model without recurrent state");
    require(tier.num_states == 0 || tier.most_storing_states >= 1, "state_tiers", tier.most_storing_states,
            "a tier needs at least 1 state in transfer");
    require(tier.blocks_per_state >= 0, "state_tiers", tier.blocks_per_state,
            "a state takes as long as 0 or more blocks");
  }
  require(states.num_slots >= 0, "state_slots", states.num_slots,
          "use 0 for a model without recurrent state");
  if (states.num_slots > 0) {
    require(states.num_slots >= least_state_slots(max_batch_size), "state_slots", states.num_slots,
            "expected at least " + std::to_string(least_state_slots(max_batch_size)) + ", two for each of " +
                std::to_string(max_batch_size) + " requests");
    const auto takes = [](const TierConfig& tier) { return tier.num_states > 0; };
    const bool has_tiers = std::any_of(tiers.begin(), tiers.end(), takes);
    require(!has_tiers || states.num_slots >= least_state_slots(max_batch_size) + 2, "state_slots",
            states.num_slots, "with tiers that keep states, two more are needed to fetch one");
    require(window.tokens == 0, "window", window.tokens,
            "windows and recurrent state cannot be combined; use 0 for no window");
  }
  require(window.tokens >= 0, "window", window.tokens, "a token sees at least itself; use 0 for no window");
  if (window.tokens == 0) return;
  const int32_t least = least_window_blocks(
      {window.tokens, num_blocks, block_tokens, max_batch_size, most_outstanding_tokens(), !tiers.empty()});
  require(window.num_blocks >= least && window.num_blocks <= num_blocks, "window blocks", window.num_blocks,
          "expected " + std::to_string(least) + " to num_blocks=" + std::to_string(num_blocks) +
              "; take as many as num_window_blocks finds for steps of " +
              std::to_string(most_outstanding_tokens()) + " tokens" + (tiers.empty() ? "" : " and tiers"));
}

}  // namespace ballast
