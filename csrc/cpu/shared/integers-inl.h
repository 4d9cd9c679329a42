// Arithmetic on counts, with internal linkage: the linker could take functions that other objects define too
// from these objects.
#pragma once

#include <cstdint>

namespace ballast {
namespace {

constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int log2_of(int power_of_two) {
  int log2 = 0;
  while (power_of_two > 1 << log2) ++log2;
  return log2;
}
constexpr int64_t divide_up(int64_t count, int64_t by) { return (count + by - 1) / by; }

}  // namespace
}  // namespace ballast
