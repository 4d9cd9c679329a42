// The use for which a snapshot of recurrent state is kept.
#pragma once

#include <cstdint>

namespace ballast {

// A set of places in a request at which the next one of its conversation may begin: after the last message of
// the user, at the end of the prompt, before the first call of the reply, or at the end of the reply.
using TurnEnds = uint8_t;
inline constexpr TurnEnds kAfterUser = 1, kAfterPrompt = 2, kBeforeCall = 4, kAfterReply = 8, kAllEnds = 15;

// The ends at which the next request of a conversation is expected to begin; at first, those that remain if
// the reply is rewritten.
struct ExpectedEnds {
  TurnEnds of_turn = kAfterUser | kAfterPrompt;  // with a new message of the user
  TurnEnds of_step = kAllEnds;                   // with the result of a call
};

struct SnapshotUse {
  int64_t request = 0;      // the last one of a conversation, from 1; negative: an unknown one; 0: none
  TurnEnds ends = 0;        // of that request
  bool goes_first = false;  // is evicted before others: no request is expected to begin here
  ExpectedEnds expected;    // of the conversation

  // Whether a conversation may continue here.
  bool is_end() const { return request != 0 && ends != 0; }
  // Whether several conversations begin here.
  bool is_shared() const { return request == 0 && !goes_first; }
};

// What a snapshot that was kept for `last` is kept for after the use `next`: a shared one stays shared, and
// does not go first only now.
inline SnapshotUse after_use(const SnapshotUse& last, SnapshotUse next) {
  if (last.is_shared() || (next.goes_first && !last.goes_first)) return last;
  if (last.request == next.request) next.ends |= last.ends;
  return next;
}

}  // namespace ballast
