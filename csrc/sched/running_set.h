// The running requests, and the slots of the batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sched/types/request.h"

namespace ballast {

// In the order of service (see FairQueue). A running request has a slot, except while it fetches its blocks
// or waits for a slot afterwards. At most max_batch_size requests are without a slot.
class RunningSet {
 public:
  explicit RunningSet(int32_t max_batch_size) : max_batch_size_(max_batch_size) {}

  size_t size() const { return requests_.size(); }
  bool empty() const { return requests_.empty(); }
  Request& operator[](size_t index) const { return *requests_[index]; }
  auto begin() const { return requests_.begin(); }
  auto end() const { return requests_.end(); }
  const std::vector<Request*>& requests() const { return requests_; }

  void insert(Request* request);
  // Removes a request and releases its slot, if it has one.
  void remove(Request* request);

  int32_t num_slots_used() const { return num_slots_used_; }
  int32_t num_free_slots() const { return max_batch_size_ - num_slots_used_; }
  int32_t num_without_slot() const { return static_cast<int32_t>(requests_.size()) - num_slots_used_; }
  bool may_fetch_more() const { return num_without_slot() < max_batch_size_; }
  void acquire_slot(Request& request);
  // Gives free slots to the requests that have fetched their blocks, in the order of service. Returns whether
  // any got one.
  bool assign_slots();

  void check() const;

 private:
  void release_slot(Request& request);

  int32_t max_batch_size_;
  std::vector<Request*> requests_;
  int32_t num_slots_used_ = 0;
};

}  // namespace ballast
