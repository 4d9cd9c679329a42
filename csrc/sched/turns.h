// Clients take turns, in rounds: each has one turn a round. Pure bookkeeping.
#pragma once

#include <cstdint>
#include <map>

namespace ballast {

// Turns are taken in ascending order.
struct Turn {
  int64_t round = 0;
  int64_t number = 0;  // unique, ascending with the arrival of those that got one

  bool operator==(const Turn& other) const { return round == other.round && number == other.number; }
  bool operator!=(const Turn& other) const { return !(*this == other); }
  bool operator<(const Turn& other) const {
    return round != other.round ? round < other.round : number < other.number;
  }
};

// The round that has come, of each priority by itself; known for as long as requests of that priority live.
//
// A request gets a turn in a round that has not begun, so nobody who waits can be passed for ever by clients
// that come later. A client none of whose requests wait has had all its turns, so nothing is kept of it.
class Rounds {
 public:
  void enter(int32_t priority) { ++rounds_[priority].num_live; }

  void leave(int32_t priority) {
    const auto found = rounds_.find(priority);
    if (--found->second.num_live == 0) rounds_.erase(found);
  }

  // A request of this round was admitted.
  void begin(int32_t priority, int64_t round) {
    int64_t& now = rounds_[priority].now;
    now = round > now ? round : now;
  }

  int64_t now(int32_t priority) const {
    const auto found = rounds_.find(priority);
    return found == rounds_.end() ? 0 : found->second.now;
  }

  size_t size() const { return rounds_.size(); }

 private:
  struct Round {
    int64_t now = 0;
    int64_t num_live = 0;
  };
  std::map<int32_t, Round> rounds_;  // by priority
};

}  // namespace ballast
