// Selects the kernels for this CPU.
#pragma once

#include <string>
#include <vector>

#include "cpu/kernels.h"

namespace ballast {

// Runs on every CPU: weights keep the format of the file and are multiplied by plain float loops.
constexpr const char* kReferenceIsa = "reference";

// An instruction set with its own kernels.
struct FastIsa {
  std::string name;
  std::vector<std::string> cpu_flags;  // required flags of /proc/cpuinfo
  double thread_flops;                 // approximate FLOP/s of one thread with a few hundred tokens
};

// The instruction sets of this build, best first, even if this CPU lacks them. Empty on other architectures
// than those of isa_list.h.
std::vector<FastIsa> fast_isas();

// Names that find_isa accepts on this CPU, best first; "reference" is the last.
std::vector<std::string> usable_isas();

// Null for "reference". Throws std::invalid_argument with the usable names for any other name.
const Kernels* find_isa(const std::string& name);

}  // namespace ballast
