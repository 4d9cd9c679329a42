// The instructions that this process may use: the CPU has them, the system saves their registers at a thread
// switch, and the kernel permits AMX.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ballast {

using CpuFeatures = uint32_t;  // bit set of the constants below

constexpr CpuFeatures kAvx2 = 1;    // with FMA and F16C
constexpr CpuFeatures kAvx512 = 2;  // F, BW, DQ, VL
constexpr CpuFeatures kAvx512Vnni = 4;
constexpr CpuFeatures kAmx = 8;  // tiles of bytes and of bfloat16

// Their flags in /proc/cpuinfo.
std::vector<std::string> flags_of(CpuFeatures features);

// Requests the kernel's permission to use AMX if the CPU has it.
CpuFeatures usable_cpu_features();

}  // namespace ballast
