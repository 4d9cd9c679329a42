// Chooses the kernels that run here.
#pragma once

#include <string>
#include <vector>

#include "cpu/kernels.h"

namespace ballast {

// Works everywhere: weights stay as they lie in the file and are multiplied by plain float loops.
constexpr const char* kReferenceIsa = "reference";

// Names that find_isa accepts on this machine, best first; "reference" is the last.
std::vector<std::string> usable_isas();

// Null for "reference". Throws std::invalid_argument for a name that is unknown or not usable here, listing
// those that are.
const Kernels* find_isa(const std::string& name);

}  // namespace ballast
