// The two lanes of steps, and which of them computes a prompt. Pure.
#pragma once

#include <cstdint>

#include "sched/config.h"

namespace ballast {

// Each has one step under way at a time, beside the other's.
enum class Lane : uint8_t {
  kDecode = 0,   // everything that decodes, and prompts that are cheaper beside it
  kPrefill = 1,  // all other prompts, where a device computes whole steps of them by itself
};

// The most prompt tokens of a step in which `num_decode` requests decode: so many that these wait no longer
// than max_stall_s for them, and one at least. The decode lane's steps have chunk_size tokens at most, but
// where there is no other lane and nothing decodes.
int32_t prompt_budget(const SchedulerConfig& config, int32_t num_decode);

// The lane that computes a prompt's last `num_tokens` sooner, were it alone with those that decode.
Lane cheaper_lane(const SchedulerConfig& config, int32_t num_tokens, int32_t num_decode);

// Seconds until prompts of num_tokens in all are computed beside num_decode requests that decode, in the lane
// that is cheaper for all of them together; 0 where no costs are known.
double prompt_seconds(const SchedulerConfig& config, int32_t num_tokens, int32_t num_decode);

}  // namespace ballast
