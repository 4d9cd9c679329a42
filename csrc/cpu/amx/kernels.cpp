#include "cpu/kernels.h"

#include "cpu/amx/chip_tiles.h"
#include "cpu/amx/table-inl.h"

namespace ballast {

const Kernels* amx_kernels() { return &kTileKernels; }

}  // namespace ballast
