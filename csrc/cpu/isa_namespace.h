// The namespace of functions in headers that are compiled for instruction sets:
//
//   inline namespace BALLAST_ISA_NAMESPACE {
//   constexpr int twice(int n) { return 2 * n; }
//   }  // namespace BALLAST_ISA_NAMESPACE
//
// The linker keeps one copy of an inline function for all objects. A copy that was compiled for AVX-512 would
// crash on a CPU without it. In objects with options of an instruction set, CMake defines BALLAST_ISA_OBJECT,
// and the namespace is unnamed: its functions are private to the object. Structs that objects exchange are
// outside and have no member functions. Decision 1 lists the alternatives.
#pragma once

#ifdef BALLAST_ISA_OBJECT
#define BALLAST_ISA_NAMESPACE
#else
#define BALLAST_ISA_NAMESPACE baseline
#endif
