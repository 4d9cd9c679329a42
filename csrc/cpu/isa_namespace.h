// The namespace of functions in headers that are compiled for instruction sets:
//
//   inline namespace BALLAST_ISA_NAMESPACE {
//   constexpr int twice(int n) { return 2 * n; }
//   }  // namespace BALLAST_ISA_NAMESPACE
//
// The linker keeps one copy of an inline function for all objects. If it kept that of an object compiled for
// AVX-512, the program would stop with an illegal instruction on a CPU without it. In objects with an
// instruction set's options, for which CMake defines BALLAST_ISA_OBJECT, the namespace is therefore unnamed:
// its functions are private to the object. Structs that objects exchange stay outside and have no member
// functions. docs/decisions has the alternatives (decision 1).
#pragma once

#ifdef BALLAST_ISA_OBJECT
#define BALLAST_ISA_NAMESPACE
#else
#define BALLAST_ISA_NAMESPACE baseline
#endif
