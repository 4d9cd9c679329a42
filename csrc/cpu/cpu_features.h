// Which instructions this process may use: what the chip has and the system saves on a switch of threads.
#pragma once

#include <cstdint>

namespace ballast {

using CpuFeatures = uint32_t;  // a set of the following

constexpr CpuFeatures kAvx2 = 1;    // with FMA and F16C
constexpr CpuFeatures kAvx512 = 2;  // F, BW, DQ, VL
constexpr CpuFeatures kAvx512Vnni = 4;

CpuFeatures usable_cpu_features();

}  // namespace ballast
