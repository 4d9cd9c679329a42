// The names of gating functions, as in ballast.families.architecture.
#pragma once

#include <stdexcept>
#include <string>

#include "moe/router.h"

namespace ballast {

inline Gating gating_of(const std::string& name) {
  if (name == "softmax") return Gating::kSoftmax;
  if (name == "sigmoid") return Gating::kSigmoid;
  if (name == "sqrtsoftplus") return Gating::kSqrtSoftplus;
  throw std::invalid_argument("gating is " + name + "; expected softmax, sigmoid or sqrtsoftplus");
}

}  // namespace ballast
