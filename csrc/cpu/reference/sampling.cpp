#include "cpu/sampling.h"

#include "cpu/reference/simd.h"
#include "cpu/shared/sampling-inl.h"

namespace ballast {

const SamplingKernels& reference_sampling() { return sampling_kernels(); }

}  // namespace ballast
