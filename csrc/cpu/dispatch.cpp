#include "cpu/dispatch.h"

#include <stdexcept>

#include "cpu/cpu_features.h"
#include "cpu/isa_list.h"

namespace ballast {
namespace {

struct Isa {
  const char* name;
  int thread_gflops;
  CpuFeatures needs;
  const Kernels* (*kernels)();
};

const std::vector<Isa>& all_isas() {
#define BALLAST_ISA(name, thread_gflops, needs, options) {#name, thread_gflops, needs, name##_kernels},
  static const std::vector<Isa> isas = {BALLAST_ISAS(BALLAST_ISA)};
#undef BALLAST_ISA
  return isas;
}

std::vector<Isa> find_usable_isas() {
  const CpuFeatures features = usable_cpu_features();
  std::vector<Isa> usable;
  for (const Isa& isa : all_isas()) {
    if ((features & isa.needs) == isa.needs) usable.push_back(isa);
  }
  return usable;
}

// Computed once: in a virtual machine, CPUID takes tens of microseconds.
const std::vector<Isa>& known_usable_isas() {
  static const std::vector<Isa> usable = find_usable_isas();
  return usable;
}

}  // namespace

std::vector<FastIsa> fast_isas() {
  std::vector<FastIsa> isas;
  for (const Isa& isa : all_isas()) isas.push_back({isa.name, flags_of(isa.needs), isa.thread_gflops * 1e9});
  return isas;
}

std::vector<std::string> usable_isas() {
  std::vector<std::string> names;
  for (const Isa& isa : known_usable_isas()) names.push_back(isa.name);
  names.push_back(kReferenceIsa);
  return names;
}

const Kernels* find_isa(const std::string& name) {
  if (name == kReferenceIsa) return nullptr;
  for (const Isa& isa : known_usable_isas()) {
    if (name == isa.name) return isa.kernels();
  }
  std::string usable;
  for (const std::string& known : usable_isas()) usable += (usable.empty() ? "" : ", ") + known;
  throw std::invalid_argument("isa is " + name + "; usable on this machine are " + usable);
}

}  // namespace ballast
