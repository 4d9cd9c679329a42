// Matrices for Python: views in place, packing, and reading back.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "bindings/arrays.h"
#include "bindings/packing.h"
#include "bindings/views.h"
#include "cpu/dispatch.h"
#include "quant/formats.h"
#include "quant/matrix.h"
#include "threads/thread_pool.h"

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

MatrixView pack(ThreadPool& pool, const MatrixView& view, const std::string& isa, int64_t num_heads,
                int64_t head_stride, int64_t row_offset, std::optional<int64_t> num_rows, bool transposed,
                std::optional<int> activation_bytes, std::shared_ptr<PanelFile> file) {
  require_in_place(view.matrix);
  const std::optional<PanelTarget> target = panel_target(isa, activation_bytes);
  const HeadRows heads =
      head_rows(view.matrix, num_heads, head_stride, row_offset, num_rows.value_or(view.matrix.rows()));
  if (!target) return view;
  const py::gil_scoped_release unlocked;
  const PanelRows rows = transposed ? PanelRows::kTransposed : PanelRows::kAsStored;
  return {std::nullopt, view.matrix.packed(pool, *target, heads, rows, std::move(file))};
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

const char* name_of(Scales scales) {
  switch (scales) {
    case Scales::kFlat:
      return "flat";
    case Scales::kPowers:
      return "powers";
    case Scales::kE4M3:
      return "e4m3";
    case Scales::kNested:
      return "nested";
    case Scales::kNibbles:
      return "nibbles";
    case Scales::kBlock:
      return "block";
    case Scales::kOddNibbles:
      return "odd nibbles";
    case Scales::kOddInCodes:
      return "odd in codes";
  }
  return nullptr;
}

py::object table_of(const QuantLayout& layout) {
  if (!layout.has_table()) return py::none();
  py::tuple steps(kTableSteps);
  for (int code = 0; code < kTableSteps; ++code)
    steps[static_cast<size_t>(code)] = steps_of(layout.table).by_code[code];
  return steps;
}

// The weights of each point as multiples of the scale, 2 to the power of scale_log2 times too large: without
// signs, and those that are shifted before they are.
py::array_t<int8_t> points_of(const Grid& grid) {
  const int64_t num_points = int64_t{1} << grid.index_bits;
  py::array_t<int8_t> out({num_points, int64_t{grid.weights}});
  int8_t* weight = out.mutable_data();
  for (int64_t point = 0; point < num_points; ++point) {
    for (int i = 0; i < grid.weights; ++i) {
      const int level = grid.points[point] >> i * grid.level_bits() & ((1 << grid.level_bits()) - 1);
      *weight++ = static_cast<int8_t>(grid.levels[level] * (grid.is_shifted() ? 8 : 1));
    }
  }
  return out;
}

void bind_formats(py::module_ m) {
  py::class_<Grid>(m, "Grid")
      .def_property_readonly("points", &points_of)
      .def_readonly("index_bits", &Grid::index_bits)
      .def_readonly("sign_bits", &Grid::sign_bits)
      .def_readonly("high_bytes", &Grid::high_bytes)
      .def_readonly("scale_log2", &Grid::scale_log2);
  py::class_<QuantLayout>(m, "QuantLayout")
      .def_readonly("bits", &QuantLayout::bits)
      .def_property_readonly("subs_per_group", &QuantLayout::subs_per_group)
      .def_readonly("offset", &QuantLayout::offset)
      .def_property_readonly("scales", [](const QuantLayout& layout) { return name_of(layout.scales); })
      .def_readonly("has_minimum", &QuantLayout::has_minimum)
      .def_property_readonly("table", &table_of)
      .def_property_readonly("has_trits", &QuantLayout::has_trits)
      .def_property_readonly("grid",
                             [](const QuantLayout& layout) {
                               return layout.has_grid() ? std::optional{layout.grid()} : std::nullopt;
                             })
      .def_property_readonly("group_bytes", &QuantLayout::group_bytes)
      .def_property_readonly("sums_whole_blocks", &QuantLayout::sums_whole_blocks)
      .def_property_readonly("scale_stride", &QuantLayout::scale_stride);
  py::class_<FormatTraits>(m, "Format")
      .def_readonly("name", &FormatTraits::name)
      .def_readonly("ggml_type", &FormatTraits::ggml_type)
      .def_readonly("block_weights", &FormatTraits::block_weights)
      .def_readonly("block_bytes", &FormatTraits::block_bytes)
      .def_readonly("layout", &FormatTraits::layout)
      .def_property_readonly("activation_bytes", [](const FormatTraits& format) {
        return format.layout == nullptr ? std::nullopt : std::optional<int>(default_activation_bytes(format));
      });
  m.def("formats", &all_formats);
}

}  // namespace

void bind_matrix(py::module_ m) {
  using py::arg;
  bind_formats(m);
  py::class_<MatrixView>(m, "Matrix")
      .def(py::init(&MatrixView::over), arg("data"), arg("ggml_type"), arg("rows"), arg("cols"),
           arg("scales") = std::vector<float>())
      .def_property_readonly("ggml_type",
                             [](const MatrixView& view) { return view.matrix.format().ggml_type; })
      .def_property_readonly("rows", [](const MatrixView& view) { return view.matrix.rows(); })
      .def_property_readonly("cols", [](const MatrixView& view) { return view.matrix.cols(); })
      .def_property_readonly("scales",
                             [](const MatrixView& view) {
                               const std::vector<float>& scales = view.matrix.scales();
                               return py::array_t<float>(static_cast<py::ssize_t>(scales.size()),
                                                         scales.data());
                             })
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

  py::class_<PanelFile, std::shared_ptr<PanelFile>>(m, "PanelFile")
      .def(py::init([](int file, bool mapped, std::optional<uint64_t> checksum) {
             return std::make_shared<PanelFile>(
                 PanelFile{file, mapped, checksum.has_value(), checksum.value_or(0), nullptr});
           }),
           arg("file"), py::kw_only(), arg("mapped"), arg("checksum"))
      .def_readonly("checksum", &PanelFile::checksum)
      .def_property_readonly("memory", [](const py::object& self) -> py::object {
        const Pages* pages = self.cast<const PanelFile&>().pages.get();
        if (pages == nullptr) return py::none();
        py::array_t<uint8_t> view({static_cast<py::ssize_t>(pages->mapped_size())}, pages->data(), self);
        view.attr("flags").attr("writeable") = false;
        return view;
      });
  m.def(
      "panel_file_nbytes",
      [](int64_t num_bytes, int64_t unit) {
        return file_bytes(static_cast<size_t>(num_bytes), static_cast<size_t>(unit));
      },
      arg("num_bytes"), arg("unit"));
  m.def(
      "checksum",
      [](const py::array_t<uint8_t, py::array::c_style>& data) {
        const size_t num_bytes = static_cast<size_t>(data.size());
        const auto address = reinterpret_cast<uintptr_t>(data.data());
        if (num_bytes % sizeof(uint64_t) != 0 || address % sizeof(uint64_t) != 0) {
          throw py::value_error("data has " + std::to_string(num_bytes) + " bytes at address " +
                                std::to_string(address) + "; expected multiples of 8");
        }
        const py::gil_scoped_release no_gil;
        return checksum(data.data(), num_bytes);
      },
      arg("data").noconvert());
  m.attr("PANEL_LAYOUT_VERSION") = kPanelLayoutVersion;

  py::class_<FastIsa>(m, "FastIsa")
      .def_readonly("name", &FastIsa::name)
      .def_readonly("cpu_flags", &FastIsa::cpu_flags)
      .def_readonly("thread_flops", &FastIsa::thread_flops);
  m.def("fast_isas", &fast_isas);
  m.def("usable_isas", &usable_isas);
  m.def("pack", &pack, arg("pool"), arg("matrix"), arg("isa"), py::kw_only(), arg("num_heads") = 1,
        arg("head_stride") = 0, arg("row_offset") = 0, arg("num_rows") = py::none(),
        arg("transposed") = false, arg("activation_bytes"), arg("file") = py::none());
  m.def("unpack", &unpack, arg("matrix"));
  m.def(
      "packed_nbytes",
      [](int ggml_type, int64_t num_heads, int64_t num_rows, int64_t cols, bool transposed) {
        return panels_bytes(ggml_type, num_heads, num_rows, cols,
                            transposed ? PanelRows::kTransposed : PanelRows::kAsStored);
      },
      arg("ggml_type"), py::kw_only(), arg("num_heads") = 1, arg("num_rows"), arg("cols"),
      arg("transposed") = false);
  m.def("dequantize", &dequantize, arg("matrix"), arg("row_begin"), arg("row_end"));
  m.def("embed", &embed, arg("matrix"), arg("ids"), arg("out"));
}
