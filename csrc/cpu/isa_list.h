// The instruction sets that kernels are compiled for, best first. Each has a folder beside this file, whose
// kernels.cpp defines <name>_kernels().
//
//   ISA(name, GFLOP/s, the CpuFeatures that it needs, "the compiler's options of this name, without -m")
//
// GFLOP/s: of one thread with some hundred tokens, roughly, after records in benchmarks/results; plans
// estimate with it. dispatch.cpp chooses from this list, kernels.h declares its functions, CMakeLists.txt
// reads names and options from it, and Python asks for it (_core.kernels.fast_isas). AMX's tiles are written
// in assembler, so its object is compiled as AVX-512's is.
//
// All of them are x86-64's. Kernels for another architecture would be a list of their own here, with its CPU
// features detected in cpu_features.cpp and its lines read in CMakeLists.txt.
#pragma once

#if defined(__x86_64__)
// clang-format off
#define BALLAST_ISAS(ISA)                                                  \
  ISA(amx, 110, kAvx2 | kAvx512 | kAvx512Vnni | kAmx,                      \
      "avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512vnni")       \
  ISA(avx512, 110, kAvx2 | kAvx512 | kAvx512Vnni,                          \
      "avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512vnni")       \
  ISA(avx2, 60, kAvx2,                                                     \
      "avx2 fma f16c")
// clang-format on
#else
#define BALLAST_ISAS(ISA)  // reference alone
#endif
