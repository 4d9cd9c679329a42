#include "cpu/kernels.h"

#include "cpu/avx2/point_products-inl.h"
#include "cpu/avx2/simd.h"
#include "cpu/panels/table-inl.h"
#include "cpu/shared/attention-inl.h"
#include "cpu/shared/delta_rule-inl.h"
#include "cpu/shared/sampling-inl.h"

namespace ballast {

const Kernels* avx2_kernels() {
  static constexpr Kernels kKernels{
      "avx2",         {activation_kernels<1>(), activation_kernels<2>()},
      silu_times,     clamped_swiglu,
      sigmoid_times,  softplus_decays,
      bounded_decays, {attend_stretch, merge_states, index_stretch, narrow, widen_row},
      delta_rule,     sampling_kernels};
  return &kKernels;
}

}  // namespace ballast
