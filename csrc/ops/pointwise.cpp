#include "ops/pointwise.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace ballast {

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

float silu(float x) { return x / (1.0f + std::exp(-x)); }

void silu_mul(const float* gate, const float* up, int64_t num, float* out) {
  for (int64_t i = 0; i < num; ++i) out[i] = silu(gate[i]) * up[i];
}

float clamped_gate(const ClampedUnit& unit, float gate) {
  if (const auto* plain = std::get_if<ClampedSilu>(&unit)) return std::min(silu(gate), plain->gate_limit);
  const auto& swiglu = std::get<ClampedSwiglu>(unit);
  const float within = std::min(gate, swiglu.limit);
  return within / (1.0f + std::exp(-swiglu.alpha * within));
}

float clamped_up(const ClampedUnit& unit, float up) {
  const auto within = [up](float limit) { return std::clamp(up, -limit, limit); };
  if (const auto* plain = std::get_if<ClampedSilu>(&unit)) return within(plain->limit);
  return within(std::get<ClampedSwiglu>(unit).limit) + 1.0f;
}

namespace {

// In pieces, since the kernel multiplies by something.
void apply_clamped_silu(const Kernels& kernels, const ClampedSilu& unit, const float* gate, const float* up,
                        int64_t num, float* out) {
  constexpr int64_t kPiece = 64;
  static const std::vector<float> ones(kPiece, 1.0f);
  float gates[kPiece];
  for (int64_t begin = 0; begin < num; begin += kPiece) {
    const int64_t size = std::min(kPiece, num - begin);
    kernels.silu_mul(gate + begin, ones.data(), size, gates);
    for (int64_t i = 0; i < size; ++i) {
      out[begin + i] =
          std::min(gates[i], unit.gate_limit) * std::clamp(up[begin + i], -unit.limit, unit.limit);
    }
  }
}

}  // namespace

void apply_unit(const Kernels& kernels, const ClampedUnit& unit, const float* gate, const float* up,
                int64_t num, float* out) {
  if (const auto* plain = std::get_if<ClampedSilu>(&unit)) {
    apply_clamped_silu(kernels, *plain, gate, up, num, out);
  } else {
    kernels.clamped_swiglu(std::get<ClampedSwiglu>(unit), gate, up, num, out);
  }
}

}  // namespace ballast
