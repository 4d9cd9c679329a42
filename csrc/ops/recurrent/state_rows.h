// Where the rows of a step find and leave the state of a recurrent layer.
#pragma once

#include <cstdint>

namespace ballast {

// Reading it gives zeros, the state before a sequence's first token; what is written to it is lost.
inline constexpr int32_t kNullState = 0;

// A row is the next tokens of one sequence. It reads the state before them from one slot and leaves the state
// after them in another one, or in the same one; no other row reads a slot that it writes. It also leaves
// the state after some of its tokens in further slots.
struct StateRows {
  int64_t num_rows = 0;
  const int32_t* token_indptr = nullptr;  // [num_rows + 1], the tokens of each row
  const int32_t* in = nullptr;            // [num_rows] slots; null: every row has the null slot in all places
  const int32_t* out = nullptr;           // [num_rows]
  const int32_t* save_indptr = nullptr;   // [num_rows + 1], the saves of each row
  const int32_t* save_ends =
      nullptr;  // [saves] how many of the row's tokens precede it, ascending, 1 or more
  const int32_t* save_slots = nullptr;  // [saves]

  int32_t slot_in(int64_t row) const { return in == nullptr ? kNullState : in[row]; }
  int32_t slot_out(int64_t row) const { return out == nullptr ? kNullState : out[row]; }
  int64_t num_tokens(int64_t row) const { return token_indptr[row + 1] - token_indptr[row]; }

  // leave(num_tokens, slot) for each state that a row leaves, in order.
  template <class Leave>
  void for_each_left(int64_t row, const Leave& leave) const {
    const int32_t first = save_indptr == nullptr ? 0 : save_indptr[row];
    const int32_t last = save_indptr == nullptr ? 0 : save_indptr[row + 1];
    for (int32_t save = first; save < last; ++save) leave(int64_t{save_ends[save]}, save_slots[save]);
    leave(num_tokens(row), slot_out(row));
  }
};

}  // namespace ballast
