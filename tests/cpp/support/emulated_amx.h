#pragma once

#include "cpu/kernels.h"

namespace ballast {

// The AMX kernels on emulated tiles; they need AVX-512 with VNNI.
const Kernels* emulated_amx_kernels();

}  // namespace ballast
