#include "sched/snapshot_uses.h"

#include <algorithm>

namespace ballast {

namespace {

// See SnapshotUse.
int64_t id_of(const Request& request) { return request.arrival + 1; }

}  // namespace

// A request that was preempted keeps what it has learned.
void SnapshotUses::begin(Request& request) {
  const bool is_first = !request.admitted_before;
  if (is_first) request.continuation.expected = expected_;
  if (request.blocks.empty()) return;
  const SnapshotUse found = slots().use_of(request.blocks.back());
  if (is_first) continue_at(request, found);
  const bool branches_here = request.continuation.branches && request.num_known == request.num_published;
  if (!found.is_end() && branches_here) use(request.blocks.back(), {});
  use_wanted(request);
}

void SnapshotUses::begin_fetched(Request& request) {
  request.continuation.branches = false;  // the tier knows more than the cache did
  if (request.fetches_first) continue_at(request, request.state.fetched_use);
  use_wanted(request);
}

void SnapshotUses::use_wanted(const Request& request) {
  for (const int32_t num_tokens : request.snapshots_at) {
    if (num_tokens > request.num_computed || num_tokens == 0) continue;
    use(request.blocks[static_cast<size_t>(num_tokens / block_tokens_ - 1)], at(request, num_tokens));
  }
}

void SnapshotUses::continue_at(Request& request, const SnapshotUse& found) {
  Continuation& continuation = request.continuation;
  continuation.of = found.is_end() ? found.request : 0;
  continuation.began_at = found.ends;
  if (!found.is_end()) return;
  continuation.expected = found.expected;
  const bool has_positions = !request.snapshots_at.empty();
  const int32_t last =
      has_positions ? request.snapshots_at.back() : last_block_end(request.prompt_tokens - 1);
  const bool repeats_prompt = last <= request.num_computed;
  // If it repeats a reply whose snapshot is gone, it would have begun there.
  const bool knows_more = request.num_known > request.num_published;
  if (!repeats_prompt && !knows_more) learn(request, found.ends);
  if (!repeats_prompt && knows_more && !continuation.branches) learn(request, kAfterReply);
  expected_ = continuation.expected;
}

void SnapshotUses::learn(Request& request, TurnEnds ends) {
  const bool is_step = !request.snapshots_at.empty() && request.snapshots_at.front() <= request.num_computed;
  ExpectedEnds& expected = request.continuation.expected;
  TurnEnds& last = is_step ? expected.of_step : expected.of_turn;
  const TurnEnds both = last & ends;
  last = both != 0 ? both : ends;
}

bool SnapshotUses::is_requested(const Request& request, int32_t num_tokens) {
  return std::binary_search(request.snapshots_at.begin(), request.snapshots_at.end(), num_tokens);
}

SnapshotUse SnapshotUses::at(const Request& request, int32_t num_tokens, TurnEnds ends) const {
  const std::vector<int32_t>& wanted = request.snapshots_at;
  SnapshotUse use{id_of(request), ends, /*goes_first=*/false, request.continuation.expected};
  if (wanted.empty() && num_tokens == last_block_end(request.prompt_tokens - 1)) use.ends |= kAfterPrompt;
  if (is_requested(request, num_tokens)) {
    use.ends |= num_tokens == wanted.front() ? kAfterUser : kAfterPrompt;
  }
  if (use.ends != 0) return use;
  const bool branches_here = request.continuation.branches && num_tokens == request.num_known * block_tokens_;
  if (branches_here && request.continuation.of == 0) return {};
  use.goes_first = true;
  return use;
}

SnapshotUse SnapshotUses::at_preemption(const Request& request, int32_t num_tokens) const {
  SnapshotUse use = at(request, num_tokens);
  use.goes_first = false;
  return use;
}

void SnapshotUses::note_left(const Request& request, const SnapshotUse& use) {
  const int64_t last = request.continuation.of;
  if (last == 0 || use.ends == 0) return;
  change(last, [](SnapshotUse& end) { end.goes_first = true; });
}

void SnapshotUses::finish(const Request& request) {
  const Continuation& continuation = request.continuation;
  if (continuation.of != 0) {
    change(continuation.of, [](SnapshotUse& end) {
      end.request = 0;
      end.goes_first = true;
    });
  }
  TurnEnds expected = continuation.expected.of_turn;
  if (continuation.calls) expected |= continuation.expected.of_step;
  if ((slots().ends_of(id_of(request)) & expected) == 0) return;
  change(id_of(request), [&](SnapshotUse& end) { end.goes_first |= (end.ends & expected) == 0; });
}

void SnapshotUses::abort(const Request& request) {
  const Continuation& continuation = request.continuation;
  if (continuation.of == 0) return;
  change(continuation.of,
         [&](SnapshotUse& end) { end.goes_first &= (end.ends & continuation.began_at) == 0; });
  change(id_of(request), [&](SnapshotUse& end) { end.request = continuation.of; });
}

void SnapshotUses::use(BlockId block, const SnapshotUse& use) {
  slots().use(block, use);
  tiers_.states().note_use(block);
}

void SnapshotUses::change(int64_t request, const std::function<void(SnapshotUse&)>& change) {
  slots().change_uses(request, change);
  tiers_.states().change_uses(request, change);
}

}  // namespace ballast
