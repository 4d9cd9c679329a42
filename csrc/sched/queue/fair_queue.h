// The waiting requests in the order in which they are served.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "sched/types/fair_share.h"
#include "sched/types/request.h"

namespace ballast {

// Inserts a request behind all that come before it in the order of service.
template <class Requests>
void insert_in_order(Requests& requests, Request* request) {
  const auto before = [](const Request* a, const Request* b) { return a->comes_before(*b); };
  requests.insert(std::upper_bound(requests.begin(), requests.end(), request, before), request);
}

// Order: by priority, lower first; within a priority by fair-share turns, one per client and round; within a
// client by arrival. With one client it is the order of arrival. Each choice of a request with several
// choices takes a turn of its own. The scheduler owns the requests; they must outlive their entry here.
class FairQueue {
 public:
  // A new request takes the next turn of its client.
  void enter(Request* request);
  // A preempted request returns; it keeps its turn.
  void requeue(Request* request) { insert_in_order(waiting_, request); }
  // A waiting request starts to run.
  void admit(size_t index);
  // A waiting request ends; if it never ran, its client's later requests move up by one turn each.
  void remove(Request* request);
  // A request of this priority that has left the queue has ended.
  void end(int32_t priority) { rounds_.leave(priority); }

  size_t size() const { return waiting_.size(); }
  Request& operator[](size_t index) const { return *waiting_[index]; }
  auto begin() const { return waiting_.begin(); }
  auto end() const { return waiting_.end(); }
  bool contains(const Request* request) const {
    return std::find(waiting_.begin(), waiting_.end(), request) != waiting_.end();
  }
  const FairShareRounds& rounds() const { return rounds_; }

  void check() const;

 private:
  Turn next_turn(const Request& request) const;
  void release_turn(const Request& leaver);

  std::deque<Request*> waiting_;
  FairShareRounds rounds_;
};

}  // namespace ballast
