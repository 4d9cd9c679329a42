#include "cpu/dispatch.h"

#include <stdexcept>

namespace ballast {
namespace {

std::vector<const Kernels*> find_usable_kernels() {
  std::vector<const Kernels*> usable;
#if defined(__x86_64__)
  const CpuFeatures features = usable_cpu_features();
  for (const Kernels* kernels : {amx_kernels(), avx512_kernels(), avx2_kernels()}) {  // best first
    if ((features & kernels->needs) == kernels->needs) usable.push_back(kernels);
  }
#endif
  return usable;
}

// Asked once: a virtual machine answers CPUID in tens of microseconds.
const std::vector<const Kernels*>& usable_kernels() {
  static const std::vector<const Kernels*> usable = find_usable_kernels();
  return usable;
}

}  // namespace

std::vector<std::string> usable_isas() {
  std::vector<std::string> names;
  for (const Kernels* kernels : usable_kernels()) names.push_back(kernels->name);
  names.push_back(kReferenceIsa);
  return names;
}

const Kernels* find_isa(const std::string& name) {
  if (name == kReferenceIsa) return nullptr;
  for (const Kernels* kernels : usable_kernels()) {
    if (name == kernels->name) return kernels;
  }
  std::string usable;
  for (const std::string& known : usable_isas()) usable += (usable.empty() ? "" : ", ") + known;
  throw std::invalid_argument("isa is " + name + "; usable on this machine are " + usable);
}

}  // namespace ballast
