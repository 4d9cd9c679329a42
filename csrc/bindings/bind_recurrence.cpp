// Operations of recurrent layers for Python: check the arrays, release the GIL, call.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/state_rows.h"
#include "cpu/dispatch.h"
#include "ops/recurrent/delta_rule.h"
#include "ops/recurrent/short_conv.h"
#include "threads/thread_pool.h"

namespace py = pybind11;
using namespace ballast;

namespace {

// Slots within the states, and rows that end with the tokens.
void check_rows(const StateRows& rows, int64_t num_tokens, int64_t num_slots) {
  if (rows.token_indptr[0] != 0 || rows.token_indptr[rows.num_rows] != num_tokens) {
    throw py::value_error("token_indptr does not run from 0 to the number of tokens");
  }
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    int64_t done = 0;
    const auto check = [&](int64_t end, int32_t slot) {
      if (slot < 0 || slot >= num_slots || end < done || end > rows.num_tokens(row)) {
        throw py::index_error("row " + std::to_string(row) + " has state slot " + std::to_string(slot) +
                              " after " + std::to_string(end) + " tokens; expected 0 to " +
                              std::to_string(num_slots - 1) + ", after ascending numbers of tokens");
      }
      done = end;
    };
    check(0, rows.slot_in(row));
    rows.for_each_left(row, check);
  }
}

StateRows rows_of(const py::array& token_indptr, const std::optional<StateArrays>& slots, int64_t num_tokens,
                  int64_t num_slots) {
  const int32_t* indptr = read<int32_t>("token_indptr", token_indptr, {{"rows + 1"}});
  const StateRows rows = read_states(slots, token_indptr.shape(0) - 1, indptr);
  check_rows(rows, num_tokens, num_slots);
  return rows;
}

void bind_delta_rule(ThreadPool& pool, const py::array& queries, const py::array& keys,
                     const py::array& values, const py::array& decays, const py::array& betas,
                     const py::array& token_indptr, const std::optional<StateArrays>& slots, py::array states,
                     py::array out, bool heads_alternate, const std::string& isa) {
  if (queries.ndim() != 3 || values.ndim() != 3) throw py::value_error("expected three dimensions");
  const int64_t num_tokens = queries.shape(0), num_keys = queries.shape(1), key_width = queries.shape(2);
  const int64_t num_heads = values.shape(1), value_width = values.shape(2);
  const DeltaShape shape{num_heads, num_keys, key_width, value_width, heads_alternate, decays.ndim() == 3};
  if (num_keys == 0 || num_heads % num_keys != 0 || key_width % 4 != 0 || key_width > kMostDeltaRows ||
      value_width % kDeltaColumns != 0) {
    throw py::value_error("queries are " + describe(queries) + " and values " + describe(values) +
                          "; expected equal groups of heads, keys of a multiple of 4, at most " +
                          std::to_string(kMostDeltaRows) + ", and values of " +
                          std::to_string(kDeltaColumns));
  }
  const std::vector<Dim> keyed = {{"T", num_tokens}, {"key heads", num_keys}, {"key width", key_width}};
  const std::vector<Dim> valued = {{"T", num_tokens}, {"heads", num_heads}, {"value width", value_width}};
  const std::vector<Dim> gated = {{"T", num_tokens}, {"heads", num_heads}};
  std::vector<Dim> decayed = gated;
  if (shape.decays_rows) decayed.push_back({"key width", key_width});
  // Inputs of a token are adjacent in the model.
  const float* q = read<float>("queries", queries, keyed);
  const float* k = read<float>("keys", keys, keyed);
  const float* v = read<float>("values", values, valued);
  const int64_t num_all = 2 * num_keys * key_width + num_heads * value_width;
  std::vector<float> joined(static_cast<size_t>(num_tokens * num_all));
  for (int64_t t = 0; t < num_tokens; ++t) {
    float* to = joined.data() + t * num_all;
    to = std::copy_n(q + t * num_keys * key_width, num_keys * key_width, to);
    to = std::copy_n(k + t * num_keys * key_width, num_keys * key_width, to);
    std::copy_n(v + t * num_heads * value_width, num_heads * value_width, to);
  }
  const DeltaInput input{
      joined.data(), joined.data() + num_keys * key_width,   joined.data() + 2 * num_keys * key_width,
      num_all,       read<float>("decays", decays, decayed), read<float>("betas", betas, gated)};
  float* all =
      write<float>("states", states,
                   {{"slots"}, {"heads", num_heads}, {"key width", key_width}, {"value width", value_width}});
  float* to = write<float>("out", out, valued);
  const StateRows rows = rows_of(token_indptr, slots, num_tokens, states.shape(0));
  const Kernels* kernels = find_isa(isa);
  const py::gil_scoped_release unlocked;
  delta_rule(pool, kernels, shape, input, rows, all, to);
}

void bind_short_conv(ThreadPool& pool, const py::array& x, const py::array& weights,
                     const py::array& token_indptr, const std::optional<StateArrays>& slots, py::array states,
                     py::array out, const std::string& isa) {
  const float* from = read<float>("x", x, {{"T"}, {"channels"}});
  const ConvShape shape{x.shape(1), weights.ndim() == 2 ? weights.shape(0) : 0};
  const float* by_tap = read<float>("weights", weights, {{"taps"}, {"channels", shape.channels}});
  if (shape.channels % 8 != 0 || shape.taps < 2) {
    throw py::value_error("weights is " + describe(weights) +
                          "; expected 2 or more taps, of a multiple of 8 channels");
  }
  float* all =
      write<float>("states", states, {{"slots"}, {"taps - 1", shape.taps - 1}, {"channels", shape.channels}});
  float* to = write<float>("out", out, {{"T", x.shape(0)}, {"channels", shape.channels}});
  check_disjoint("out", out, "x", x);
  const StateRows rows = rows_of(token_indptr, slots, x.shape(0), states.shape(0));
  const Kernels* kernels = find_isa(isa);
  const py::gil_scoped_release unlocked;
  short_conv(pool, kernels, shape, by_tap, from, rows, all, to);
}

}  // namespace

void bind_recurrence(py::module_ m) {
  using py::arg;
  m.def("delta_rule", &bind_delta_rule, arg("pool"), py::kw_only(), arg("queries"), arg("keys"),
        arg("values"), arg("decays"), arg("betas"), arg("token_indptr"), arg("slots") = py::none(),
        arg("states"), arg("out"), arg("heads_alternate"), arg("isa"));
  m.def("short_conv", &bind_short_conv, arg("pool"), py::kw_only(), arg("x"), arg("weights"),
        arg("token_indptr"), arg("slots") = py::none(), arg("states"), arg("out"), arg("isa"));
}
