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

// What a step of the decode lane holds up.
struct Company {
  int32_t num_decode;         // requests that decode
  bool is_prefill_under_way;  // a request may come to decode while the step runs
};

// The most prompt tokens of a step of the decode lane: so many that those that decode wait no longer than
// max_stall_s for them, and one at least. The step holds chunk_size tokens at most where somebody decodes or
// may come to.
int32_t decode_lane_budget(const SchedulerConfig& config, Company company);

// The lane that computes a prompt's last `num_tokens` sooner, were it alone in it.
Lane cheaper_lane(const SchedulerConfig& config, int32_t num_tokens, Company company);

}  // namespace ballast
