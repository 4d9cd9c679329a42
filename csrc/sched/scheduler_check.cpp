// The invariants of the scheduler, for tests.
#include <algorithm>

#include "base/check.h"
#include "sched/scheduler.h"

namespace ballast {

void Scheduler::check_running(const Request& request) const {
  const RequestBlocks& blocks = state_.request_blocks;
  const int32_t num_covered = request.num_computed + request.num_planned;
  const int32_t num_drafts = request.num_planned_drafts();
  const int32_t num_planned_ahead = request.num_planned_ahead;
  BALLAST_CHECK(num_covered <= request.num_tokens() + num_drafts &&
                request.num_computed < request.num_tokens());
  BALLAST_CHECK(request.draft_tokens.empty() || request.wants_decode());
  BALLAST_CHECK(!request.is_planned() || num_drafts == static_cast<int32_t>(request.draft_tokens.size()));
  BALLAST_CHECK(num_drafts == 0 || num_covered <= request.num_kv_tokens_at_most());
  // All tokens have blocks, except that a token to decode may get its block only when it is planned.
  const int32_t num_blocks = static_cast<int32_t>(request.blocks.size());
  const int32_t num_stored = request.wants_decode() ? num_covered : request.num_tokens();
  BALLAST_CHECK(num_blocks <= blocks.num_for(request.num_tokens() + std::max(num_planned_ahead, num_drafts)));
  BALLAST_CHECK(num_blocks >= blocks.num_for(num_stored + num_planned_ahead));
  BALLAST_CHECK(request.num_published == request.num_computed / state_.config.block_tokens);
  const WindowBlocks& windows = state_.blocks.windows();
  if (windows.is_used()) {
    const int32_t num_full = request.num_published * state_.config.block_tokens;
    BALLAST_CHECK(request.windows_begin == windows.first_seen(num_full));
    BALLAST_CHECK(request.windows_end <= num_blocks);
    BALLAST_CHECK(num_covered == 0 || request.windows_end >= blocks.num_for(num_covered + num_planned_ahead));
  }
  if (state_.blocks.states().is_used()) {
    const RequestState& state = request.state;
    BALLAST_CHECK((state.live == kNullSlot) == (request.num_computed == 0));
    BALLAST_CHECK((state.next == kNullSlot) == !request.is_planned());
    BALLAST_CHECK(request.is_planned() || state.saves.empty());
    BALLAST_CHECK((state.fetched == kNullSlot) == !request.is_fetching());
    BALLAST_CHECK((state.kept == kNullSlot) == (state.num_kept == 0));
    BALLAST_CHECK(state.num_kept % state_.config.block_tokens == 0);
    BALLAST_CHECK(state.num_kept <= request.num_computed);
  }
  BALLAST_CHECK(request.admitted_before);
  BALLAST_CHECK(!request.can_run() || !request.aborted);
  BALLAST_CHECK(!request.is_fetching() || !request.has_slot);
  BALLAST_CHECK(!request.is_planned() || request.has_slot);
  BALLAST_CHECK(request.num_published + static_cast<int32_t>(request.fetches.size()) <=
                (request.num_tokens() - 1) / state_.config.block_tokens);
  const auto& rows = steps_[request.lane].rows;
  const bool is_row = std::find(rows.begin(), rows.end(), &request) != rows.end();
  BALLAST_CHECK(is_row == request.is_planned());
  state_.blocks.check_published(request.blocks, static_cast<size_t>(request.num_published), request.tokens,
                                request.salt);
}

void Scheduler::check_waiting(const Request& request) {
  BALLAST_CHECK(request.blocks.empty() && request.num_computed == 0 && request.num_planned == 0);
  BALLAST_CHECK(request.draft_tokens.empty());
  BALLAST_CHECK(!request.aborted && !request.has_slot);
  BALLAST_CHECK(request.state.live == kNullSlot && request.state.kept == kNullSlot);
  for (const TierTable& tier : request.tiers) BALLAST_CHECK(tier.blocks.empty());
}

void Scheduler::check() const {
  BALLAST_CHECK(state_.requests.size() == state_.running.size() + state_.queue.size());
  const auto check_live = [&](const Request& request) {
    const auto found = state_.requests.find(request.seq);
    BALLAST_CHECK(found != state_.requests.end() && found->second.get() == &request);
    BALLAST_CHECK(request.num_generated() < request.max_tokens);
  };
  std::vector<int32_t> owners(static_cast<size_t>(state_.config.num_blocks) + 1, 0), needs = owners;
  std::vector<int32_t> holders(static_cast<size_t>(state_.config.states.num_slots) + 1, 0);
  const auto count_holder = [&](StateSlot slot) { holders[index_of(slot)] += slot != kNullSlot; };
  for (const Request* request : state_.running) {
    check_live(*request);
    count_holder(request->state.live);
    count_holder(request->state.kept);
    count_holder(request->state.next);
    count_holder(request->state.fetched);
    for (const StateSave& save : request->state.saves) count_holder(save.slot);
    check_running(*request);
    for (const BlockId block : request->blocks) ++owners[index_of(block)];
    for (int32_t i = request->windows_begin; i < request->windows_end; ++i) {
      ++needs[index_of(request->blocks[static_cast<size_t>(i)])];
    }
    BALLAST_CHECK(request->is_fetching() || request->fetched_end == 0);
    for (int32_t i = request->fetched_begin; i < request->fetched_end; ++i) {
      ++needs[index_of(request->blocks[static_cast<size_t>(i)])];
    }
  }
  for (const Request* request : state_.queue) {
    check_live(*request);
    check_waiting(*request);
  }
  state_.running.check();
  state_.queue.check();
  state_.blocks.check(owners);
  state_.blocks.windows().check(needs);
  state_.blocks.states().check(holders);
  state_.tiers.check(state_.running.requests());
}

}  // namespace ballast
