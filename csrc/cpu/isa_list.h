// The instruction sets that kernels are compiled for, best first. Each has a folder beside this file, whose
// kernels.cpp defines <name>_kernels().
//
//   ISA(name, the CpuFeatures that it needs, "the compiler's options of this name, without -m")
//
// dispatch.cpp chooses from this list, kernels.h declares its functions, and CMakeLists.txt reads names and
// options from it. AMX's tiles are written in assembler, so its object is compiled as AVX-512's is.
#pragma once

#if defined(__x86_64__)
// clang-format off
#define BALLAST_ISAS(ISA)                                                  \
  ISA(amx, kAvx2 | kAvx512 | kAvx512Vnni | kAmx,                           \
      "avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512vnni")       \
  ISA(avx512, kAvx2 | kAvx512 | kAvx512Vnni,                               \
      "avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512vnni")       \
  ISA(avx2, kAvx2,                                                         \
      "avx2 fma f16c")
// clang-format on
#else
#define BALLAST_ISAS(ISA)  // reference alone
#endif
