#pragma once

#include "cpu/kernels.h"

namespace ballast {

// The AMX kernels on emulated tiles; they require AVX-512 with VNNI.
const Kernels* emulated_amx_kernels();

// Throws InvariantError. Defined in test_amx.cpp, which is compiled for every CPU.
[[noreturn]] void break_tile_rule(const char* rule, int line);

}  // namespace ballast
