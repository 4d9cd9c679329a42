#include "sched/steps/plan_rows.h"

namespace ballast {

namespace {

void reserve(Plan& plan, const std::vector<Request*>& rows) {
  size_t num_tokens = 0, num_blocks = 0;
  for (const Request* request : rows) {
    num_tokens += static_cast<size_t>(request->num_planned);
    num_blocks += request->blocks.size();
  }
  plan.seqs.reserve(rows.size());
  plan.kv_lens.reserve(rows.size());
  plan.samples.reserve(rows.size());
  plan.logits_at.reserve(rows.size());
  plan.query_indptr.reserve(rows.size() + 1);
  plan.kv_indptr.reserve(rows.size() + 1);
  plan.token_ids.reserve(num_tokens);
  plan.earlier_ids.reserve(rows.size() * kEarlierTokens);
  plan.positions.reserve(num_tokens);
  plan.slots.reserve(num_tokens);
  plan.kv_indices.reserve(num_blocks);
}

void append_windows(Plan& plan, const Request& request, int32_t begin, int32_t end, int32_t block_tokens,
                    const WindowBlocks& windows) {
  const auto window_of = [&](int32_t index) {
    return windows.of(request.blocks[static_cast<size_t>(index)]);
  };
  for (int32_t position = begin; position < end; ++position) {
    plan.window_slots.push_back(static_cast<int32_t>(window_of(position / block_tokens)) * block_tokens +
                                position % block_tokens);
  }
  const int32_t first = windows.first_seen(begin);
  plan.window_indices.insert(plan.window_indices.end(), static_cast<size_t>(first), kNullBlock);
  for (int32_t index = first; index <= (end - 1) / block_tokens; ++index) {
    plan.window_indices.push_back(window_of(index));
  }
}

void append_states(Plan& plan, const Request& request) {
  const RequestState& state = request.state;
  if (plan.save_indptr.empty()) plan.save_indptr.push_back(0);
  plan.states_in.push_back(state.live);
  plan.states_out.push_back(state.next);
  for (const StateSave& save : state.saves) {
    plan.save_ends.push_back(save.num_tokens - request.num_computed);
    plan.save_slots.push_back(save.slot);
  }
  plan.save_indptr.push_back(static_cast<int32_t>(plan.save_slots.size()));
}

}  // namespace

void append_row(Plan& plan, const Request& request, int32_t begin, int32_t end, int32_t block_tokens,
                const WindowBlocks& windows) {
  if (plan.query_indptr.empty()) {
    plan.query_indptr.push_back(0);
    plan.kv_indptr.push_back(0);
  }
  plan.seqs.push_back(request.seq);
  for (int32_t position = begin - kEarlierTokens; position < begin; ++position) {
    plan.earlier_ids.push_back(position < 0 ? kNoToken : request.token_at(position));
  }
  for (int32_t position = begin; position < end; ++position) {
    const BlockId block = request.blocks[static_cast<size_t>(position / block_tokens)];
    plan.token_ids.push_back(request.token_at(position));
    plan.positions.push_back(position);
    plan.slots.push_back(static_cast<int32_t>(block) * block_tokens + position % block_tokens);
  }
  plan.query_indptr.push_back(plan.num_tokens());
  const int32_t num_blocks = (end - 1) / block_tokens + 1;
  plan.kv_indices.insert(plan.kv_indices.end(), request.blocks.begin(), request.blocks.begin() + num_blocks);
  plan.kv_indptr.push_back(static_cast<int32_t>(plan.kv_indices.size()));
  plan.kv_lens.push_back(end);
  if (windows.is_used()) append_windows(plan, request, begin, end, block_tokens, windows);
}

std::vector<Request*> write_rows(Plan& plan, const std::vector<Request*>& requests, Lane lane,
                                 int32_t block_tokens, const WindowBlocks& windows, bool has_states) {
  std::vector<Request*> rows;
  rows.reserve(requests.size());
  for (const bool decodes : {true, false}) {
    for (Request* request : requests) {
      const bool is_row = request->is_planned() && request->lane == lane;
      if (is_row && request->decodes == decodes) rows.push_back(request);
    }
    if (decodes) plan.num_decode = static_cast<int32_t>(rows.size());
  }
  reserve(plan, rows);
  if (rows.empty()) plan.query_indptr = plan.kv_indptr = {0};
  for (const Request* request : rows) {
    append_row(plan, *request, request->num_computed, request->num_computed + request->num_planned,
               block_tokens, windows);
    if (has_states) append_states(plan, *request);
    plan.samples.push_back(request->num_samples());
    for (int32_t left = request->num_samples(); left > 0; --left) {
      plan.logits_at.push_back(plan.num_tokens() - left);
    }
  }
  return rows;
}

bool have_same_rows(const Plan& a, const Plan& b) {
  return a.seqs == b.seqs && a.query_indptr == b.query_indptr && a.positions == b.positions &&
         a.slots == b.slots && a.kv_indptr == b.kv_indptr && a.kv_indices == b.kv_indices &&
         a.window_slots == b.window_slots && a.window_indices == b.window_indices;
}

}  // namespace ballast
