// Which instructions this process may use: those that the chip has, whose registers the system saves when it
// switches threads and, for AMX, that the kernel permits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ballast {

using CpuFeatures = uint32_t;  // a bit set of the constants below

constexpr CpuFeatures kAvx2 = 1;    // with FMA and F16C
constexpr CpuFeatures kAvx512 = 2;  // F, BW, DQ, VL
constexpr CpuFeatures kAvx512Vnni = 4;
constexpr CpuFeatures kAmx = 8;  // tiles of bytes and of bfloat16

// Their flags, as /proc/cpuinfo names them.
std::vector<std::string> flags_of(CpuFeatures features);

// Asks the kernel for the permission to use AMX where the chip has it.
CpuFeatures usable_cpu_features();

}  // namespace ballast
