// The products that weights can be packed for, and a check of a product's packing.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>

#include "cpu/dispatch.h"
#include "quant/matrix.h"
#include "quant/panels.h"

namespace ballast {

// Throws ValueError unless the heads lie apart within the weight's rows.
inline HeadRows head_rows(const Matrix& weight, int64_t num_heads, int64_t stride, int64_t offset,
                          int64_t num_rows) {
  bool fit = num_heads >= 0 && stride >= 0 && offset >= 0 && num_rows >= 0;
  if (fit && num_heads > 0) {
    const int64_t beyond_first = weight.rows() - num_rows - offset;
    fit = num_rows <= weight.rows() && offset <= weight.rows() && beyond_first >= 0;
    // Sums and products of these could exceed 64 bits.
    if (num_heads > 1) fit = fit && stride > 0 && stride <= beyond_first / (num_heads - 1);
  }
  if (!fit) {
    throw pybind11::value_error("weight has " + std::to_string(weight.rows()) + " rows; " +
                                std::to_string(num_heads) + " heads of " + std::to_string(num_rows) +
                                " rows at row_offset " + std::to_string(offset) + " and head_stride " +
                                std::to_string(stride) + " do not lie apart within them");
  }
  return {num_heads, stride, offset, num_rows};
}

// A packed matrix serves the heads that it was packed for, and scales of its parts are for experts.
inline void check_packed_for(const Matrix& weight, const HeadRows& heads, PanelRows rows) {
  if (weight.num_scales() > 1) {
    throw pybind11::value_error("weight has " + std::to_string(weight.num_scales()) +
                                " scales; expected one at most: more are for experts");
  }
  const Panels* panels = weight.panels();
  if (panels == nullptr || (panels->heads() == heads && panels->panel_rows() == rows)) return;
  const HeadRows& packed = panels->heads();
  throw pybind11::value_error(
      "weight is packed for " + std::to_string(packed.num_heads) + " heads of " +
      std::to_string(packed.num_rows) + " rows, head_stride " + std::to_string(packed.stride) +
      ", row_offset " + std::to_string(packed.offset) +
      (panels->panel_rows() == PanelRows::kTransposed ? ", transposed" : ", not transposed") +
      "; pack it for the product that it is used in");
}

// None for "reference", whose weights stay where they lie.
inline std::optional<PanelTarget> panel_target(const std::string& isa, std::optional<int> activation_bytes) {
  if (activation_bytes && *activation_bytes != 1 && *activation_bytes != 2) {
    throw pybind11::value_error("activation_bytes is " + std::to_string(*activation_bytes) +
                                "; expected 1, 2 or None, for as many as the format has by default");
  }
  const Kernels* kernels = find_isa(isa);
  if (kernels == nullptr) return std::nullopt;
  return PanelTarget{*kernels, activation_bytes.value_or(kBytesByFormat)};
}

}  // namespace ballast
