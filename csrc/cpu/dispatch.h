// Chooses the kernels that run here.
#pragma once

#include <string>
#include <vector>

#include "cpu/kernels.h"

namespace ballast {

// Runs on every CPU: weights stay in the file's format and are multiplied by plain float loops.
constexpr const char* kReferenceIsa = "reference";

// An instruction set with kernels of its own.
struct FastIsa {
  std::string name;
  std::vector<std::string> cpu_flags;  // that it needs, as /proc/cpuinfo names them
  double thread_flops;                 // a second, of one thread with some hundred tokens, roughly
};

// What this build has such kernels for, usable here or not, best first; none for an architecture that
// isa_list.h does not have.
std::vector<FastIsa> fast_isas();

// Names that find_isa accepts on this machine, best first; "reference" is the last.
std::vector<std::string> usable_isas();

// Null for "reference". Throws std::invalid_argument for a name that is unknown or not usable here, listing
// those that are.
const Kernels* find_isa(const std::string& name);

}  // namespace ballast
