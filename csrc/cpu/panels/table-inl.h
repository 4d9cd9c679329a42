// The functions that an instruction set exports, one per kind of panel.
#pragma once

#include "cpu/kernels.h"
#include "cpu/panels/multiply_floats-inl.h"
#include "cpu/panels/multiply_quantized-inl.h"
#include "cpu/shared/elementwise-inl.h"

namespace ballast {
namespace {

template <int kBytes>
constexpr ActivationKernels activation_kernels() {
#define BALLAST_FLOATS(name, ...) multiply_floats<name##AsFloats>,
#define BALLAST_QUANTIZED(name, ...) multiply_quantized<kPanel##name, kBytes>,
  return {{BALLAST_FORMATS(BALLAST_FLOATS, BALLAST_QUANTIZED)},
          {},
          quantize_activations<kBytes>,
          sizeof(ActivationBlock<kBytes>)};
#undef BALLAST_QUANTIZED
#undef BALLAST_FLOATS
}

}  // namespace
}  // namespace ballast
