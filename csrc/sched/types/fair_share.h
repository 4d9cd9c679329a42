// Fair share among clients, in rounds: each client has one turn per round. Bookkeeping only.
#pragma once

#include <cstdint>
#include <map>

namespace ballast {

// Turns are served in ascending order.
struct Turn {
  int64_t round = 0;
  int64_t number = 0;  // unique; ascends with arrival

  bool operator==(const Turn& other) const { return round == other.round && number == other.number; }
  bool operator!=(const Turn& other) const { return !(*this == other); }
  bool operator<(const Turn& other) const {
    return round != other.round ? round < other.round : number < other.number;
  }
};

// The current round of each priority, kept while requests of that priority are live.
//
// A request gets a turn in a round that has not begun, so it cannot be overtaken indefinitely. A client
// without waiting requests has used all its turns, so nothing is stored per client.
class FairShareRounds {
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

  // Calls visit(priority, round) for each priority with live requests.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const auto& [priority, round] : rounds_) visit(priority, round.now);
  }

 private:
  struct Round {
    int64_t now = 0;
    int64_t num_live = 0;
  };
  std::map<int32_t, Round> rounds_;  // by priority
};

}  // namespace ballast
