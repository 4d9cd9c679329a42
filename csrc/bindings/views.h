// Weights together with the Python object that owns their memory.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "moe/experts.h"
#include "quant/matrix.h"

namespace ballast {

// A matrix and the array that it looks into; none for a packed one.
struct MatrixView {
  std::optional<pybind11::array> owner;
  Matrix matrix;

  static MatrixView over(pybind11::array data, int ggml_type, int64_t rows, int64_t cols,
                         const std::vector<float>& scales) {
    if ((data.flags() & pybind11::array::c_style) == 0) {
      throw pybind11::value_error("data is " + describe(data) + "; expected C-contiguous bytes");
    }
    const Matrix matrix(data.data(), data.nbytes(), ggml_type, rows, cols, scales);
    return {std::move(data), matrix};
  }
};

// Experts and the arrays that they look into; none for packed ones.
struct ExpertsView {
  std::vector<pybind11::array> owners;
  Experts experts;

  static ExpertsView over(const MatrixView& gate, const MatrixView& up, const MatrixView& down,
                          int64_t num_experts) {
    return {owners_of({&gate, &up, &down}), Experts(gate.matrix, up.matrix, down.matrix, num_experts)};
  }

  static ExpertsView over_fused(const MatrixView& gate_up, const MatrixView& down, int64_t num_experts) {
    return {owners_of({&gate_up, &down}), Experts(gate_up.matrix, down.matrix, num_experts)};
  }

 private:
  static std::vector<pybind11::array> owners_of(const std::vector<const MatrixView*>& views) {
    std::vector<pybind11::array> owners;
    for (const MatrixView* view : views) {
      if (view->owner) owners.push_back(*view->owner);
    }
    return owners;
  }
};

}  // namespace ballast
