#include "emulated_tiles.h"

#include "cpu/amx/table-inl.h"
#include "emulated_amx.h"

namespace ballast {

const Kernels* emulated_amx_kernels() { return &kTileKernels; }

}  // namespace ballast
