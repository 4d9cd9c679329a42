#include "sched/queue/fair_queue.h"

#include <utility>

#include "base/check.h"

namespace ballast {

void FairQueue::enter(Request* request) {
  request->turn = next_turn(*request);
  insert_in_order(waiting_, request);
  rounds_.enter(request->priority);
}

void FairQueue::admit(size_t index) {
  const Request& request = *waiting_[index];
  if (!request.admitted_before) rounds_.begin(request.priority, request.turn.round);
  waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(index));
}

void FairQueue::remove(Request* request) {
  waiting_.erase(std::find(waiting_.begin(), waiting_.end(), request));
  release_turn(*request);
}

// The next round in which the client of the request has no turn yet.
Turn FairQueue::next_turn(const Request& request) const {
  int64_t last_round = rounds_.now(request.priority);
  for (auto other = waiting_.rbegin(); other != waiting_.rend(); ++other) {
    if ((*other)->priority < request.priority) break;
    if ((*other)->shares_queue_with(request)) {
      last_round = std::max(last_round, (*other)->turn.round);
      break;
    }
  }
  return {last_round + 1, request.arrival};
}

// When a request leaves before it ran, its turn goes to its client's next request, whose turn goes to the one
// after that, and so on.
void FairQueue::release_turn(const Request& leaver) {
  if (leaver.turn.round <= rounds_.now(leaver.priority)) return;
  Turn free = leaver.turn;
  bool is_moved = false;
  for (Request* request : waiting_) {
    if (!request->shares_queue_with(leaver) || request->turn < leaver.turn) continue;
    free = std::exchange(request->turn, free);
    is_moved = true;
  }
  const auto before = [](const Request* a, const Request* b) { return a->comes_before(*b); };
  if (is_moved) std::sort(waiting_.begin(), waiting_.end(), before);
}

void FairQueue::check() const {
  const Request* last = nullptr;
  for (const Request* request : waiting_) {
    BALLAST_CHECK(last == nullptr || last->comes_before(*request));
    BALLAST_CHECK(request->admitted_before || request->num_generated() == 0);
    BALLAST_CHECK(!request->admitted_before || request->turn.round <= rounds_.now(request->priority));
    last = request;
  }
}

}  // namespace ballast
