// The values of codes in formats whose codes index a table or are grid points.
//
// Compiled into objects for instruction sets that the host may not have: see cpu/isa_namespace.h.
#pragma once

#include <cstdint>

#include "cpu/grids.h"
#include "cpu/isa_namespace.h"

namespace ballast {

enum class CodeTable {
  kNone,   // the code is the number itself
  kIQ4,    // closer together around zero
  kE2M1,   // floats of four bits (OCP microscaling formats), doubled
  kTrits,  // codes 0, 1 and 2 are digits of numbers of base 3
  // Grids, named by their number of points and the weights of a point.
  kGrid256x8,
  kGrid512x8,
  kGrid1024x8,
  kGrid2048x8,
  kGrid256x4,
  kGrid512x4,
};

constexpr int kTableBits = 4;
constexpr int kTableSteps = 1 << kTableBits;

inline namespace BALLAST_ISA_NAMESPACE {

struct TableSteps {
  alignas(16) int8_t by_code[kTableSteps];

  // All steps plus 128: the same bits as unsigned bytes.
  constexpr TableSteps biased() const {
    TableSteps result{};
    for (int code = 0; code < kTableSteps; ++code)
      result.by_code[code] =
          static_cast<int8_t>(by_code[code] < 0 ? by_code[code] + 128 : by_code[code] - 128);
    return result;
  }
};

// Zeros for a table without 16 steps.
constexpr TableSteps steps_of(CodeTable table) {
  switch (table) {
    case CodeTable::kIQ4:
      return {{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}};
    case CodeTable::kE2M1:
      return {{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}};
    default:
      break;
  }
  return {};
}

// Points whose coordinates are levels (cpu/make_grids.py).
struct Grid {
  const uint16_t* points;
  const int8_t* levels;
  int index_bits;
  int weights;     // of a point
  int sign_bits;   // of eight weights: eight; seven, whose eighth makes the number of signs even; or none
  int high_bytes;  // of 32 weights: bits of the points' numbers beyond eight that signs do not hold
  int scale_log2;  // levels are 2^scale_log2 times too large

  constexpr int level_bits() const { return 16 / weights; }
  // Grids without signs shift levels -1, 0 and 1 by an eighth to either side: weights are multiples of an
  // eighth.
  constexpr bool is_shifted() const { return sign_bits == 0; }
};

// Without points if the table is no grid.
constexpr Grid grid_of(CodeTable table) {
  switch (table) {
    case CodeTable::kGrid256x8:
      return {kPoints256x8, kLevels256x8, 8, 8, 7, 0, 3};
    case CodeTable::kGrid512x8:
      return {kPoints512x8, kLevels512x8, 9, 8, 7, 0, 3};
    case CodeTable::kGrid1024x8:
      return {kPoints1024x8, kLevels1024x8, 10, 8, 8, 1, 3};
    case CodeTable::kGrid2048x8:
      return {kPoints2048x8, kLevels2048x8, 11, 8, 0, 2, 3};
    case CodeTable::kGrid256x4:
      return {kPoints256x4, kLevels256x4, 8, 4, 7, 0, 2};
    case CodeTable::kGrid512x4:
      return {kPoints512x4, kLevels512x4, 9, 4, 8, 1, 0};
    default:
      return {};
  }
}

}  // namespace BALLAST_ISA_NAMESPACE
}  // namespace ballast
