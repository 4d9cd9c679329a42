// The instruction sets that kernels are compiled for, best first. kernels.cpp in the folder of each one
// defines <name>_kernels().
//
//   ISA(name, GFLOP/s, required CpuFeatures, "compiler options without -m")
//
// GFLOP/s is the approximate speed of one thread with a few hundred tokens, from benchmarks/results. Plans
// use it. dispatch.cpp, kernels.h, CMakeLists.txt and _core.kernels.fast_isas read this list. AMX tiles are
// written in assembler, so the AMX object is compiled like the AVX-512 object.
//
// All entries are for x86-64. Another architecture needs its own list here, its CPU features in
// cpu_features.cpp, and a reader in CMakeLists.txt.
#pragma once

#if defined(__x86_64__)
// clang-format off
#if defined(BALLAST_NARROW_ISAS)
#define BALLAST_WIDE_ISAS(ISA)
#else
#define BALLAST_WIDE_ISAS(ISA)                                             \
  ISA(amx, 110, kAvx2 | kAvx512 | kAvx512Vnni | kAmx,                      \
      "avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512vnni")       \
  ISA(avx512, 110, kAvx2 | kAvx512 | kAvx512Vnni,                          \
      "avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512vnni")
#endif
#define BALLAST_ISAS(ISA)                                                  \
  BALLAST_WIDE_ISAS(ISA)                                                   \
  ISA(avx2, 60, kAvx2,                                                     \
      "avx2 fma f16c")
// clang-format on
#else
#define BALLAST_ISAS(ISA)  // only the reference kernels
#endif
