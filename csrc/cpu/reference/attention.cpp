#include "cpu/attention.h"

#include "cpu/reference/simd.h"
#include "cpu/shared/attention-inl.h"

namespace ballast {

const AttentionKernels& reference_attention() {
  static constexpr AttentionKernels kKernels{attend_stretch, merge_states, index_stretch, narrow, widen_row};
  return kKernels;
}

}  // namespace ballast
