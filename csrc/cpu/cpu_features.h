// Which instructions this process may use: what the chip has, the system saves on a switch of threads and,
// for AMX, the kernel permits.
#pragma once

#include <cstdint>

namespace ballast {

using CpuFeatures = uint32_t;  // a set of the following

constexpr CpuFeatures kAvx2 = 1;    // with FMA and F16C
constexpr CpuFeatures kAvx512 = 2;  // F, BW, DQ, VL
constexpr CpuFeatures kAvx512Vnni = 4;
constexpr CpuFeatures kAmx = 8;  // tiles of bytes and of bfloat16

// Asks the kernel for the permission to use AMX where the chip has it.
CpuFeatures usable_cpu_features();

}  // namespace ballast
