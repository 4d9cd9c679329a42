// The functions that an instruction set exports, in the order of PanelKind.
#pragma once

namespace ballast {
namespace {

template <int kBytes>
constexpr ActivationKernels activation_kernels() {
  ActivationKernels kernels{{
                                multiply_floats<FloatsAsFloats>,
                                multiply_floats<HalvesAsFloats>,
                                multiply_floats<BfloatsAsFloats>,
                                multiply_quantized<kPanelQ4_0, kBytes>,
                                multiply_quantized<kPanelQ4_1, kBytes>,
                                multiply_quantized<kPanelQ5_0, kBytes>,
                                multiply_quantized<kPanelQ5_1, kBytes>,
                                multiply_quantized<kPanelQ8_0, kBytes>,
                                multiply_quantized<kPanelQ2_K, kBytes>,
                                multiply_quantized<kPanelQ3_K, kBytes>,
                                multiply_quantized<kPanelQ4_K, kBytes>,
                                multiply_quantized<kPanelQ5_K, kBytes>,
                                multiply_quantized<kPanelQ6_K, kBytes>,
                                multiply_quantized<kPanelIQ4_NL, kBytes>,
                                multiply_quantized<kPanelIQ4_XS, kBytes>,
                            },
                            {},
                            quantize_activations<kBytes>,
                            sizeof(ActivationBlock<kBytes>)};
  return kernels;
}

}  // namespace
}  // namespace ballast
