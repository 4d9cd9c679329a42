// CPU kernels for Python: check the arrays, release the GIL, call.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/views.h"
#include "cpu/dispatch.h"
#include "moe/experts.h"
#include "moe/router.h"
#include "numa/read_speed.h"
#include "numa/thread_pool.h"
#include "ops/linear.h"
#include "ops/mla_attention.h"
#include "ops/norm.h"
#include "ops/rope.h"
#include "quant/formats.h"
#include "quant/matrix.h"

namespace py = pybind11;
using namespace ballast;

namespace {

void require_in_place(const Matrix& matrix) {
  if (matrix.panels() != nullptr) throw py::value_error("matrix is packed; expected one seen where it lies");
}

// Address and length of the memory that a matrix's weights are read from.
std::pair<uintptr_t, int64_t> memory_of(const MatrixView& view) {
  const Panels* panels = view.matrix.panels();
  if (panels != nullptr) return {reinterpret_cast<uintptr_t>(panels->panel(0, 0)), panels->num_bytes()};
  return {reinterpret_cast<uintptr_t>(view.owner->data()), view.matrix.num_bytes()};
}

// The panels as they lie, which every instruction set shares, seen and never copied.
py::array panels_of(const py::object& self) {
  const Panels* panels = self.cast<const MatrixView&>().matrix.panels();
  if (panels == nullptr) throw py::value_error("matrix is seen where it lies; expected a packed one");
  const int64_t num_heads = panels->heads().num_heads;
  const int64_t per_head = panels->panels_per_head();
  const int64_t num_panels = num_heads * per_head;
  py::array_t<uint8_t> view({num_heads, per_head, num_panels == 0 ? 0 : panels->num_bytes() / num_panels},
                            panels->panel(0, 0), self);
  view.attr("flags").attr("writeable") = false;
  return view;
}

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

void check_rows(const Matrix& matrix, int64_t begin, int64_t end) {
  if (begin < 0 || end < begin || end > matrix.rows()) {
    throw py::index_error("rows " + std::to_string(begin) + " to " + std::to_string(end) +
                          " asked of a matrix that has " + std::to_string(matrix.rows()));
  }
}

py::array_t<float> dequantize(const MatrixView& view, int64_t row_begin, int64_t row_end) {
  require_in_place(view.matrix);
  check_rows(view.matrix, row_begin, row_end);
  py::array_t<float> out({row_end - row_begin, view.matrix.cols()});
  float* data = out.mutable_data();
  const py::gil_scoped_release unlocked;
  for (int64_t row = row_begin; row < row_end; ++row) {
    view.matrix.dequantize_row(row, data + (row - row_begin) * view.matrix.cols());
  }
  return out;
}

void embed(const MatrixView& view, const py::array& ids, py::array out) {
  require_in_place(view.matrix);
  const int32_t* rows = read<int32_t>("ids", ids, {{"T"}});
  const int64_t num_tokens = ids.shape(0);
  float* data = write<float>("out", out, {{"T", num_tokens}, {"cols", view.matrix.cols()}});
  const py::gil_scoped_release unlocked;
  for (int64_t token = 0; token < num_tokens; ++token) {
    if (rows[token] < 0 || rows[token] >= view.matrix.rows()) {
      throw std::out_of_range("ids[" + std::to_string(token) + "] is " + std::to_string(rows[token]) +
                              "; expected 0 to " + std::to_string(view.matrix.rows() - 1));
    }
  }
  for (int64_t token = 0; token < num_tokens; ++token) {
    view.matrix.dequantize_row(rows[token], data + token * view.matrix.cols());
  }
}

HeadRows head_rows(const Matrix& weight, int64_t num_heads, int64_t stride, int64_t offset,
                   int64_t num_rows) {
  if (stride < 0 || offset < 0 ||
      (num_heads > 0 && (num_heads - 1) * stride + offset + num_rows > weight.rows())) {
    throw py::value_error("weight has " + std::to_string(weight.rows()) + " rows; " +
                          std::to_string(num_heads) + " heads of " + std::to_string(num_rows) +
                          " rows at row_offset " + std::to_string(offset) + " and head_stride " +
                          std::to_string(stride) + " reach beyond them");
  }
  return {num_heads, stride, offset, num_rows};
}

// A packed matrix serves the heads that it was packed for.
void check_packed_for(const Matrix& weight, const HeadRows& heads, PanelRows rows) {
  const Panels* panels = weight.panels();
  if (panels == nullptr || (panels->heads() == heads && panels->panel_rows() == rows)) return;
  const HeadRows& packed = panels->heads();
  throw py::value_error(
      "weight is packed for " + std::to_string(packed.num_heads) + " heads of " +
      std::to_string(packed.num_rows) + " rows, head_stride " + std::to_string(packed.stride) +
      ", row_offset " + std::to_string(packed.offset) +
      (panels->panel_rows() == PanelRows::kTransposed ? ", transposed" : ", not transposed") +
      "; pack it for the product that it is used in");
}

// None for "reference", whose weights stay where they lie.
std::optional<PanelTarget> panel_target(const std::string& isa, int activation_bytes) {
  if (activation_bytes != 1 && activation_bytes != 2) {
    throw py::value_error("activation_bytes is " + std::to_string(activation_bytes) + "; expected 1 or 2");
  }
  const Kernels* kernels = find_isa(isa);
  if (kernels == nullptr) return std::nullopt;
  return PanelTarget{*kernels, activation_bytes};
}

MatrixView pack(ThreadPool& pool, const MatrixView& view, const std::string& isa, int64_t num_heads,
                int64_t head_stride, int64_t row_offset, std::optional<int64_t> num_rows, bool transposed,
                int activation_bytes) {
  require_in_place(view.matrix);
  const std::optional<PanelTarget> target = panel_target(isa, activation_bytes);
  const HeadRows heads =
      head_rows(view.matrix, num_heads, head_stride, row_offset, num_rows.value_or(view.matrix.rows()));
  if (!target) return view;
  const py::gil_scoped_release unlocked;
  return {std::nullopt, view.matrix.packed(pool, *target, heads,
                                           transposed ? PanelRows::kTransposed : PanelRows::kAsStored)};
}

ExpertsView pack_experts(const ExpertsView& view, ThreadPool& pool, const std::string& isa,
                         int activation_bytes, const std::optional<Experts::PartDone>& done) {
  if (!view.experts.parts().empty()) throw py::value_error("the experts are packed already");
  const std::optional<PanelTarget> target = panel_target(isa, activation_bytes);
  if (!target) return view;
  const py::gil_scoped_release unlocked;
  return {{}, done ? view.experts.packed(pool, *target, *done) : view.experts.packed(pool, *target)};
}

const Panels& packed_panels(const MatrixView& view) {
  if (view.matrix.panels() == nullptr)
    throw py::value_error("matrix is seen where it lies; expected a packed one");
  return *view.matrix.panels();
}

py::array_t<float> unpack(const MatrixView& view) {
  const Panels& panels = packed_panels(view);
  py::array_t<float> out({panels.heads().num_heads, panels.head_rows(), panels.cols()});
  float* data = out.mutable_data();
  const py::gil_scoped_release unlocked;
  for (int64_t head = 0; head < panels.heads().num_heads; ++head) {
    for (int64_t row = 0; row < panels.head_rows(); ++row, data += panels.cols())
      panels.unpack_row(head, row, data);
  }
  return out;
}

void bind_linear(ThreadPool& pool, const py::array& x, const MatrixView& weight, py::array out) {
  const float* from = read<float>("x", x, {{"T"}, {"cols", weight.matrix.cols()}});
  const int64_t num_tokens = x.shape(0);
  float* to = write<float>("out", out, {{"T", num_tokens}, {"rows", weight.matrix.rows()}});
  check_disjoint("out", out, "x", x);
  check_packed_for(weight.matrix, {1, 0, 0, weight.matrix.rows()}, PanelRows::kAsStored);
  const py::gil_scoped_release unlocked;
  linear(pool, from, num_tokens, weight.matrix, to);
}

void bind_head_linear(ThreadPool& pool, const py::array& x, const MatrixView& weight, int64_t head_stride,
                      int64_t row_offset, py::array out) {
  const float* from = read<float>("x", x, {{"T"}, {"H"}, {"cols", weight.matrix.cols()}});
  const int64_t num_tokens = x.shape(0);
  float* to = write<float>("out", out, {{"T", num_tokens}, {"H", x.shape(1)}, {"N"}});
  check_disjoint("out", out, "x", x);
  const HeadRows heads = head_rows(weight.matrix, x.shape(1), head_stride, row_offset, out.shape(2));
  check_packed_for(weight.matrix, heads, PanelRows::kAsStored);
  const py::gil_scoped_release unlocked;
  head_linear(pool, from, num_tokens, weight.matrix, heads, to);
}

void bind_head_linear_transposed(ThreadPool& pool, const py::array& x, const MatrixView& weight,
                                 int64_t head_stride, int64_t row_offset, py::array out) {
  const float* from = read<float>("x", x, {{"T"}, {"H"}, {"N"}});
  const int64_t num_tokens = x.shape(0);
  float* to =
      write<float>("out", out, {{"T", num_tokens}, {"H", x.shape(1)}, {"cols", weight.matrix.cols()}});
  check_disjoint("out", out, "x", x);
  const HeadRows heads = head_rows(weight.matrix, x.shape(1), head_stride, row_offset, x.shape(2));
  check_packed_for(weight.matrix, heads, PanelRows::kTransposed);
  const py::gil_scoped_release unlocked;
  head_linear_transposed(pool, from, num_tokens, weight.matrix, heads, to);
}

void bind_rms_norm(const py::array& x, const py::array& weight, float eps, py::array out) {
  const float* from = read<float>("x", x, {{"T"}, {"D"}});
  const int64_t num_tokens = x.shape(0);
  const int64_t width = x.shape(1);
  const float* scales = read<float>("weight", weight, {{"D", width}});
  float* to = write<float>("out", out, {{"T", num_tokens}, {"D", width}});
  const py::gil_scoped_release unlocked;
  rms_norm(from, num_tokens, width, scales, eps, to);
}

void bind_rope(py::array x, const py::array& cos, const py::array& sin) {
  float* data = write<float>("x", x, {{"T"}, {"H"}, {"R"}});
  const int64_t num_tokens = x.shape(0);
  const int64_t num_heads = x.shape(1);
  const int64_t width = x.shape(2);
  if (width % 2 != 0) throw py::value_error("x is " + describe(x) + "; expected an even last dimension");
  const float* c = read<float>("cos", cos, {{"T", num_tokens}, {"R / 2", width / 2}});
  const float* s = read<float>("sin", sin, {{"T", num_tokens}, {"R / 2", width / 2}});
  const py::gil_scoped_release unlocked;
  rope_interleaved(data, num_tokens, num_heads, width, c, s);
}

void bind_mla_attention(ThreadPool& pool, const py::array& query, const py::array& kv_cache,
                        int64_t block_tokens, const py::array& query_indptr, const py::array& positions,
                        const py::array& kv_indptr, const py::array& kv_indices, int64_t value_dim,
                        float scale, py::array out, const std::optional<std::string>& isa) {
  const float* q = read<float>("query", query, {{"T"}, {"H"}, {"L"}});
  const int64_t num_tokens = query.shape(0);
  const AttentionShape shape{query.shape(1), query.shape(2), value_dim, scale};
  const float* cache = read<float>("kv_cache", kv_cache, {{"slots"}, {"L", shape.row_width}});
  if (block_tokens < 1) {
    throw py::value_error("block_tokens is " + std::to_string(block_tokens) + "; expected 1 or more");
  }
  if (value_dim < 1 || value_dim > shape.row_width) {
    throw py::value_error("value_dim is " + std::to_string(value_dim) + "; expected 1 to query's L, " +
                          std::to_string(shape.row_width));
  }
  const int32_t* query_ends = read<int32_t>("query_indptr", query_indptr, {{"requests + 1"}});
  const int64_t num_requests = query_indptr.shape(0) - 1;
  if (num_requests < 0) throw py::value_error("query_indptr is empty; expected requests + 1 entries");
  const PagedBatch batch{num_requests,
                         num_tokens,
                         kv_cache.shape(0),
                         kv_indices.size(),
                         block_tokens,
                         query_ends,
                         read<int32_t>("positions", positions, {{"T", num_tokens}}),
                         read<int32_t>("kv_indptr", kv_indptr, {{"requests + 1", num_requests + 1}}),
                         read<int32_t>("kv_indices", kv_indices, {{"blocks"}})};
  float* to = write<float>("out", out, {{"T", num_tokens}, {"H", shape.num_heads}, {"value_dim", value_dim}});
  check_disjoint("out", out, "query", query);
  check_disjoint("out", out, "kv_cache", kv_cache);
  const Kernels* kernels = find_isa(isa ? *isa : chosen_isa());
  const LatentQuery queries{q, shape.row_width, q + value_dim, shape.row_width};
  const py::gil_scoped_release unlocked;
  batch.check();
  mla_attention(pool, kernels, queries, cache, batch, shape, to);
}

void bind_silu_mul(const py::array& gate, const py::array& up, py::array out) {
  const float* g = read<float>("gate", gate, {{"T"}, {"I"}});
  const float* u = read<float>("up", up, {{"T", gate.shape(0)}, {"I", gate.shape(1)}});
  float* to = write<float>("out", out, {{"T", gate.shape(0)}, {"I", gate.shape(1)}});
  const int64_t num = gate.size();
  const py::gil_scoped_release unlocked;
  silu_mul(g, u, num, to);
}

void bind_route(const py::array& logits, const std::optional<py::array>& bias, bool sigmoid,
                int64_t num_groups, int64_t num_groups_used, bool group_score_top2, bool normalize,
                float scale, py::array ids, py::array weights) {
  const float* from = read<float>("logits", logits, {{"T"}, {"E"}});
  const int64_t num_tokens = logits.shape(0);
  const int64_t num_experts = logits.shape(1);
  int32_t* to_ids = write<int32_t>("ids", ids, {{"T", num_tokens}, {"k"}});
  const int64_t num_chosen = ids.shape(1);
  float* to_weights = write<float>("weights", weights, {{"T", num_tokens}, {"k", num_chosen}});
  const float* biases = bias ? read<float>("bias", *bias, {{"E", num_experts}}) : nullptr;
  const RoutingRule rule{num_experts, num_chosen,       num_groups, num_groups_used,
                         sigmoid,     group_score_top2, normalize,  scale};
  const py::gil_scoped_release unlocked;
  rule.check();
  route(from, num_tokens, biases, rule, to_ids, to_weights);
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

std::vector<int> supported_types() {
  std::vector<int> types;
  for (const FormatTraits& format : all_formats()) types.push_back(format.ggml_type);
  return types;
}

}  // namespace

void bind_kernels(py::module_ m) {
  using py::arg;
  py::class_<MatrixView>(m, "Matrix")
      .def(py::init(&MatrixView::over), arg("data"), arg("ggml_type"), arg("rows"), arg("cols"))
      .def_property_readonly("ggml_type",
                             [](const MatrixView& view) { return view.matrix.format().ggml_type; })
      .def_property_readonly("rows", [](const MatrixView& view) { return view.matrix.rows(); })
      .def_property_readonly("cols", [](const MatrixView& view) { return view.matrix.cols(); })
      .def_property_readonly("isa",
                             [](const MatrixView& view) {
                               const Panels* panels = view.matrix.panels();
                               return panels == nullptr ? kReferenceIsa : panels->kernels().name;
                             })
      .def_property_readonly("packed_nbytes",
                             [](const MatrixView& view) {
                               const Panels* panels = view.matrix.panels();
                               return panels == nullptr ? 0 : panels->num_bytes();
                             })
      .def_property_readonly("nbytes", [](const MatrixView& view) { return view.matrix.num_bytes(); })
      .def_property_readonly("panels", &panels_of)
      .def_property_readonly("memory", [](const MatrixView& view) { return std::vector{memory_of(view)}; });
  py::class_<ExpertsView>(m, "Experts")
      .def(py::init(&ExpertsView::over), arg("gate"), arg("up"), arg("down"), arg("num_experts"))
      .def_static("fused", &ExpertsView::over_fused, arg("gate_up"), arg("down"), arg("num_experts"))
      .def("packed", &pack_experts, arg("pool"), arg("isa"), py::kw_only(), arg("activation_bytes") = 1,
           arg("done") = py::none())
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
      .def("forward", &forward_experts, arg("pool"), arg("x"), arg("ids"), arg("weights"), arg("out"));

  m.def("supported_types", &supported_types);
  m.def("measure_read_speed", &measure_read_speed, arg("pool"), arg("num_bytes"),
        py::call_guard<py::gil_scoped_release>());
  m.def("isa", &chosen_isa);
  m.def("usable_isas", &usable_isas);
  m.def("pack", &pack, arg("pool"), arg("matrix"), arg("isa"), py::kw_only(), arg("num_heads") = 1,
        arg("head_stride") = 0, arg("row_offset") = 0, arg("num_rows") = py::none(),
        arg("transposed") = false, arg("activation_bytes") = 1);
  m.def("unpack", &unpack, arg("matrix"));
  m.def(
      "packed_nbytes",
      [](int ggml_type, int64_t num_heads, int64_t num_rows, int64_t cols, bool transposed) {
        return panels_bytes(ggml_type, num_heads, num_rows, cols,
                            transposed ? PanelRows::kTransposed : PanelRows::kAsStored);
      },
      arg("ggml_type"), py::kw_only(), arg("num_heads") = 1, arg("num_rows"), arg("cols"),
      arg("transposed") = false);
  m.def("experts_packed_nbytes", &experts_packed_nbytes, arg("types"), py::kw_only(), arg("num_experts"),
        arg("hidden"), arg("width"), arg("threads_per_node"));
  m.def("dequantize", &dequantize, arg("matrix"), arg("row_begin"), arg("row_end"));
  m.def("embed", &embed, arg("matrix"), arg("ids"), arg("out"));
  m.def("linear", &bind_linear, arg("pool"), arg("x"), arg("weight"), arg("out"));
  m.def("head_linear", &bind_head_linear, arg("pool"), arg("x"), arg("weight"), arg("head_stride"),
        arg("row_offset"), arg("out"));
  m.def("head_linear_transposed", &bind_head_linear_transposed, arg("pool"), arg("x"), arg("weight"),
        arg("head_stride"), arg("row_offset"), arg("out"));
  m.def("rms_norm", &bind_rms_norm, arg("x"), arg("weight"), arg("eps"), arg("out"));
  m.def("rope_interleaved", &bind_rope, arg("x"), arg("cos"), arg("sin"));
  m.def("mla_attention", &bind_mla_attention, arg("pool"), arg("query"), arg("kv_cache"), arg("block_tokens"),
        arg("query_indptr"), arg("positions"), arg("kv_indptr"), arg("kv_indices"), arg("value_dim"),
        arg("scale"), arg("out"), py::kw_only(), arg("isa") = py::none());
  m.def("silu_mul", &bind_silu_mul, arg("gate"), arg("up"), arg("out"));
  m.def("route", &bind_route, arg("logits"), arg("bias").none(true), py::kw_only(), arg("sigmoid"),
        arg("num_groups"), arg("num_groups_used"), arg("group_score_top2"), arg("normalize"), arg("scale"),
        arg("ids"), arg("weights"));
}
