// Chooses the kernels that run here.
#pragma once

#include <string>
#include <vector>

#include "cpu/kernels.h"

namespace ballast {

// Runs on every CPU: weights stay in the file's format and are multiplied by plain float loops.
constexpr const char* kReferenceIsa = "reference";

// Names of what this build has kernels for, usable here or not, best first; "reference" is the last.
std::vector<std::string> compiled_isas();

// Those that find_isa accepts on this machine, in the same order.
std::vector<std::string> usable_isas();

// Null for "reference". Throws std::invalid_argument for a name that is unknown or not usable here, listing
// those that are.
const Kernels* find_isa(const std::string& name);

}  // namespace ballast
