// Functions of single numbers, and the units of experts.
#pragma once

#include <cstdint>
#include <variant>

#include "cpu/kernels.h"

namespace ballast {

float sigmoid(float x);
// ln(1 + e^x). As torch: the identity above 20.
float softplus(float x);
// silu(x) = x / (1 + e^-x)
float silu(float x);

// out = silu(gate) * up, num elements. out may be gate or up.
void silu_mul(const float* gate, const float* up, int64_t num, float* out);

// The unit of experts of Step and GLM-5.3-Flash: min(silu(gate), gate_limit) u, where u is up within -limit
// and limit. Both limits are above 0; silu(min(gate, limit)) is the case of gate_limit = silu(limit).
struct ClampedSilu {
  float limit;
  float gate_limit;
};

using ClampedUnit = std::variant<ClampedSwiglu, ClampedSilu>;

// The two factors of a clamped unit.
float clamped_gate(const ClampedUnit& unit, float gate);
float clamped_up(const ClampedUnit& unit, float up);

// out = the unit of gate and up, num elements, a multiple of 8. out may be gate or up.
void apply_unit(const Kernels& kernels, const ClampedUnit& unit, const float* gate, const float* up,
                int64_t num, float* out);

}  // namespace ballast
