// The slots of recurrent state of a step, checked.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "bindings/arrays.h"
#include "ops/recurrent/state_rows.h"

namespace ballast {

// in, out, and indptr, ends and slots of saves.
using StateArrays =
    std::tuple<pybind11::array, pybind11::array, pybind11::array, pybind11::array, pybind11::array>;

inline StateRows read_states(const std::optional<StateArrays>& states, int64_t num_rows,
                             const int32_t* indptr) {
  StateRows rows;
  rows.num_rows = num_rows;
  rows.token_indptr = indptr;
  if (!states) return rows;
  const auto& [in, out, save_indptr, save_ends, save_slots] = *states;
  rows.in = read<int32_t>("states_in", in, {{"requests", num_rows}});
  rows.out = read<int32_t>("states_out", out, {{"requests", num_rows}});
  rows.save_indptr = read<int32_t>("save_indptr", save_indptr, {{"requests + 1", num_rows + 1}});
  rows.save_ends = read<int32_t>("save_ends", save_ends, {{"saves"}});
  rows.save_slots = read<int32_t>("save_slots", save_slots, {{"saves", save_ends.size()}});
  for (int64_t row = 0; row < num_rows; ++row) {
    if (rows.save_indptr[row] <= rows.save_indptr[row + 1]) continue;
    throw pybind11::value_error("save_indptr[" + std::to_string(row + 1) + "] is less than the entry before");
  }
  if (rows.save_indptr[0] != 0 || rows.save_indptr[num_rows] != save_ends.size()) {
    throw pybind11::value_error("save_indptr does not run from 0 to the number of saves");
  }
  return rows;
}

}  // namespace ballast
