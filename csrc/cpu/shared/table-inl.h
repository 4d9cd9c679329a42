// The table of functions that an instruction set exports, in the order of PanelKind.
#pragma once

#define BALLAST_PANEL_KERNELS                                                                           \
  {multiply_floats<FloatsAsFloats>, multiply_floats<HalvesAsFloats>,  multiply_floats<BfloatsAsFloats>, \
   multiply_quantized<kPanelQ4_0>,  multiply_quantized<kPanelQ4_1>,   multiply_quantized<kPanelQ5_0>,   \
   multiply_quantized<kPanelQ5_1>,  multiply_quantized<kPanelQ8_0>,   multiply_quantized<kPanelQ2_K>,   \
   multiply_quantized<kPanelQ3_K>,  multiply_quantized<kPanelQ4_K>,   multiply_quantized<kPanelQ5_K>,   \
   multiply_quantized<kPanelQ6_K>,  multiply_quantized<kPanelIQ4_NL>, multiply_quantized<kPanelIQ4_XS>}
