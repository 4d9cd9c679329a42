#include "sched/running_set.h"

#include <algorithm>

#include "base/check.h"
#include "sched/queue/fair_queue.h"

namespace ballast {

void RunningSet::insert(Request* request) { insert_in_order(requests_, request); }

void RunningSet::remove(Request* request) {
  requests_.erase(std::find(requests_.begin(), requests_.end(), request));
  release_slot(*request);
}

void RunningSet::acquire_slot(Request& request) {
  request.has_slot = true;
  ++num_slots_used_;
}

void RunningSet::release_slot(Request& request) {
  num_slots_used_ -= request.has_slot;
  request.has_slot = false;
}

bool RunningSet::assign_slots() {
  const int32_t num_before = num_slots_used_;
  for (Request* request : requests_) {
    if (num_free_slots() == 0) break;
    if (request->can_run() && !request->has_slot) acquire_slot(*request);
  }
  return num_slots_used_ > num_before;
}

void RunningSet::check() const {
  const auto has_slot = [](const Request* request) { return request->has_slot; };
  BALLAST_CHECK(num_slots_used_ == std::count_if(requests_.begin(), requests_.end(), has_slot));
  BALLAST_CHECK(num_slots_used_ <= max_batch_size_ && num_without_slot() <= max_batch_size_);
  const auto is_before = [](const Request* a, const Request* b) { return a->comes_before(*b); };
  BALLAST_CHECK(std::is_sorted(requests_.begin(), requests_.end(), is_before));
}

}  // namespace ballast
