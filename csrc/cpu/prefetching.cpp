#include "cpu/prefetching.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ballast {
namespace {

bool is_intel() {
#if defined(__x86_64__)
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  __get_cpuid(0, &eax, &ebx, &ecx, &edx);
  return ebx == signature_INTEL_ebx && ecx == signature_INTEL_ecx && edx == signature_INTEL_edx;
#else
  return false;
#endif
}

}  // namespace

Prefetching prefetching_of_this_chip() {
  // Computed once: in a virtual machine, CPUID takes tens of microseconds.
  static const Prefetching chosen = is_intel() ? Prefetching{PrefetchTarget::kSecondCache, 16 << 10, false}
                                               : Prefetching{PrefetchTarget::kFirstCache, 12 << 10, true};
  return chosen;
}

}  // namespace ballast
