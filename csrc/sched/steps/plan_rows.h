// Writes the rows of a plan: positions, slots and block tables of its requests.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/window_blocks.h"
#include "sched/types/lane.h"
#include "sched/types/plan.h"
#include "sched/types/request.h"

namespace ballast {

// Adds a row for tokens begin…end of a request; token ids that are not known yet are 0.
void append_row(Plan& plan, const Request& request, int32_t begin, int32_t end, int32_t block_tokens,
                const WindowBlocks& windows);

// Writes a row for each of the requests that is planned in `lane`; returns them in the order of rows.
std::vector<Request*> write_rows(Plan& plan, const std::vector<Request*>& requests, Lane lane,
                                 int32_t block_tokens, const WindowBlocks& windows, bool has_states);

// Whether two plans have the same rows, apart from token ids.
bool have_same_rows(const Plan& a, const Plan& b);

}  // namespace ballast
