// Routed experts for Python.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/packing.h"
#include "bindings/views.h"
#include "moe/experts.h"
#include "moe/experts_packing.h"
#include "ops/pointwise.h"
#include "quant/matrix.h"
#include "quant/panels.h"
#include "threads/thread_pool.h"

namespace py = pybind11;
using namespace ballast;

namespace {

using Range = std::pair<uintptr_t, int64_t>;

// The kernel's number of the node whose threads read a range, and the range.
std::vector<std::pair<int, Range>> memory_of_experts(const ExpertsView& view) {
  std::vector<std::pair<int, Range>> memory;
  for (const py::array& owner : view.owners) {
    memory.push_back({kUnknownNode, {reinterpret_cast<uintptr_t>(owner.data()), owner.nbytes()}});
  }
  for (const Experts::Part& part : view.experts.parts()) {
    for (const auto* panels : {&part.gate, &part.up, &part.down}) {
      const uintptr_t begin = reinterpret_cast<uintptr_t>((*panels)->panel(0, 0));
      memory.push_back({part.kernel_node, {begin, (*panels)->num_bytes()}});
    }
  }
  return memory;
}

using PartMatrices = std::tuple<MatrixView, MatrixView, MatrixView>;

std::vector<PartMatrices> parts_of_experts(const ExpertsView& view) {
  std::vector<PartMatrices> parts;
  for (const Experts::Part& part : view.experts.parts()) {
    const auto [gate, up, down] = view.experts.matrices(part);
    parts.push_back({{std::nullopt, gate}, {std::nullopt, up}, {std::nullopt, down}});
  }
  return parts;
}

ExpertsView pack_experts(const ExpertsView& view, ThreadPool& pool, const std::string& isa,
                         std::optional<int> activation_bytes) {
  if (!view.experts.parts().empty()) throw py::value_error("the experts are packed already");
  const std::optional<PanelTarget> target = panel_target(isa, activation_bytes);
  if (!target) return view;
  const py::gil_scoped_release unlocked;
  return {{}, view.experts.packed(pool, *target)};
}

using Projection = ExpertsPacking::Projection;

Projection projection_of(const std::string& name) {
  if (name == "gate") return Projection::kGate;
  if (name == "up") return Projection::kUp;
  if (name == "down") return Projection::kDown;
  throw py::value_error("projection is " + name + "; expected gate, up or down");
}

std::unique_ptr<ExpertsPacking> begin_packing(const ExpertsView& view, ThreadPool& pool,
                                              const std::string& isa, std::optional<int> activation_bytes) {
  const std::optional<PanelTarget> target = panel_target(isa, activation_bytes);
  if (!target) throw py::value_error("isa is " + isa + ", which reads weights in place");
  return std::make_unique<ExpertsPacking>(view.experts, pool, *target);
}

void pack_projection(ExpertsPacking& packing, const std::string& projection,
                     const std::vector<std::shared_ptr<PanelFile>>& files) {
  const Projection which = projection_of(projection);
  const py::gil_scoped_release unlocked;
  packing.pack(which, files);
}

void bind_packing(py::module_ m) {
  using py::arg;
  py::class_<ExpertsPacking>(m, "ExpertsPacking")
      .def(py::init(&begin_packing), py::keep_alive<1, 2>(), py::keep_alive<1, 3>(), arg("experts"),
           arg("pool"), arg("isa"), py::kw_only(), arg("activation_bytes"))
      .def(
          "nbytes",
          [](const ExpertsPacking& packing, const std::string& projection) {
            return packing.node_bytes(projection_of(projection));
          },
          arg("projection"))
      .def("pack", &pack_projection, arg("projection"),
           arg("files") = std::vector<std::shared_ptr<PanelFile>>())
      .def("finish", [](const ExpertsPacking& packing) { return ExpertsView{{}, packing.finish()}; });
}

// Biases [E, rows].
ExpertsView with_biases(const ExpertsView& view, const py::array& gate, const py::array& up,
                        const py::array& down) {
  const auto copy = [](const char* name, const py::array& array) {
    const float* from = read<float>(name, array, {{"E"}, {"rows"}});
    return std::vector<float>(from, from + array.size());
  };
  return {view.owners, view.experts.with_biases({copy("gate", gate), copy("up", up), copy("down", down)})};
}

ExpertsView with_clamped_swiglu(const ExpertsView& view, float alpha, float limit) {
  return {view.owners, view.experts.with_unit(ClampedSwiglu{alpha, limit})};
}

ExpertsView with_clamped_silu(const ExpertsView& view, float limit, bool limits_input) {
  return {view.owners, view.experts.with_unit(ClampedSilu{limit, limits_input ? silu(limit) : limit})};
}

// Biases of gate and up [E, I] and of down [E, D]; none without any.
std::optional<std::tuple<py::array, py::array, py::array>> biases_of_experts(const ExpertsView& view) {
  const ExpertBiases* biases = view.experts.biases();
  if (biases == nullptr) return std::nullopt;
  const auto copy = [&](const std::vector<float>& bias) -> py::array {
    const int64_t num_experts = view.experts.num_experts();
    return py::array_t<float>({num_experts, static_cast<int64_t>(bias.size()) / num_experts}, bias.data());
  };
  return std::tuple{copy(biases->gate), copy(biases->up), copy(biases->down)};
}

// The first row of gate and up of each part.
std::vector<int64_t> first_rows_of_parts(const ExpertsView& view) {
  std::vector<int64_t> rows;
  for (const Experts::Part& part : view.experts.parts()) rows.push_back(part.first_row);
  return rows;
}

// Alpha, which a clamped silu does not have, limit, and gate limit, which a clamped swiglu does not have;
// none for silu.
std::vector<std::optional<float>> clamped_unit(const ExpertsView& view) {
  const std::optional<ClampedUnit>& unit = view.experts.unit();
  if (!unit) return {};
  if (const auto* swiglu = std::get_if<ClampedSwiglu>(&*unit)) return {swiglu->alpha, swiglu->limit};
  const auto& plain = std::get<ClampedSilu>(*unit);
  return {std::nullopt, plain.limit, plain.gate_limit};
}

void forward_experts(const ExpertsView& view, ThreadPool& pool, const py::array& x, const py::array& ids,
                     const py::array& weights, py::array out) {
  const int64_t width = view.experts.hidden_width();
  const float* from = read<float>("x", x, {{"T"}, {"D", width}});
  const int64_t num_tokens = x.shape(0);
  const int32_t* experts = read<int32_t>("ids", ids, {{"T", num_tokens}, {"k"}});
  const int64_t num_chosen = ids.shape(1);
  const float* shares = read<float>("weights", weights, {{"T", num_tokens}, {"k", num_chosen}});
  float* to = write<float>("out", out, {{"T", num_tokens}, {"D", width}});
  check_disjoint("out", out, "x", x);
  const py::gil_scoped_release unlocked;
  view.experts.forward(pool, from, num_tokens, experts, shares, num_chosen, to);
}

// Bytes of gate, up and down of packed experts.
std::tuple<int64_t, int64_t, int64_t> experts_packed_nbytes(std::tuple<int, int, int> types,
                                                            int64_t num_experts, int64_t hidden,
                                                            int64_t width,
                                                            const std::vector<int>& threads_per_node) {
  const auto [gate_type, up_type, down_type] = types;
  const Matrix down_rows(nullptr, 0, down_type, 0, width);
  int64_t gate = 0, up = 0, down = 0;
  for (const IndexRange& range : ranges_by_node(down_rows.format(), width, threads_per_node)) {
    if (range.size() == 0) continue;
    gate += panels_bytes(gate_type, num_experts, range.size(), hidden, PanelRows::kAsStored);
    up += panels_bytes(up_type, num_experts, range.size(), hidden, PanelRows::kAsStored);
    down += panels_bytes(down_type, num_experts, hidden, range.size(), PanelRows::kAsStored);
  }
  return {gate, up, down};
}

}  // namespace

void bind_experts(py::module_ m) {
  using py::arg;
  py::class_<ExpertsView>(m, "Experts")
      .def(py::init(&ExpertsView::over), arg("gate"), arg("up"), arg("down"), arg("num_experts"))
      .def_static("fused", &ExpertsView::over_fused, arg("gate_up"), arg("down"), arg("num_experts"))
      .def("with_biases", &with_biases, arg("gate"), arg("up"), arg("down"))
      .def("with_clamped_swiglu", &with_clamped_swiglu, py::kw_only(), arg("alpha"), arg("limit"))
      .def("with_clamped_silu", &with_clamped_silu, py::kw_only(), arg("limit"), arg("limits_input"))
      .def("packed", &pack_experts, arg("pool"), arg("isa"), py::kw_only(), arg("activation_bytes"))
      .def_property_readonly("memory", &memory_of_experts)
      .def_property_readonly("uses",
                             [](const ExpertsView& view) {
                               const std::vector<int64_t> uses = view.experts.uses();
                               return py::array_t<int64_t>(static_cast<py::ssize_t>(uses.size()),
                                                           uses.data());
                             })
      .def_property_readonly("num_experts",
                             [](const ExpertsView& view) { return view.experts.num_experts(); })
      .def_property_readonly("parts", &parts_of_experts)
      .def_property_readonly("first_rows", &first_rows_of_parts)
      .def_property_readonly("biases", &biases_of_experts)
      .def_property_readonly("clamped_unit", &clamped_unit)
      .def("forward", &forward_experts, arg("pool"), arg("x"), arg("ids"), arg("weights"), arg("out"));
  bind_packing(m);
  m.def("experts_packed_nbytes", &experts_packed_nbytes, arg("types"), py::kw_only(), arg("num_experts"),
        arg("hidden"), arg("width"), arg("threads_per_node"));
}
