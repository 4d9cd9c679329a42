// What codes stand for in the formats whose codes index a table.
//
// Only plain data here: this header is compiled into objects for instruction sets that the host may not have.
#pragma once

#include <cstdint>

namespace ballast {

enum class CodeTable {
  kNone,  // a code is the number itself
  kIQ4,   // closer together around zero
  kE2M1,  // floats of four bits (OCP microscaling formats), doubled
};

constexpr int kTableBits = 4;
constexpr int kTableSteps = 1 << kTableBits;

struct TableSteps {
  alignas(16) int8_t by_code[kTableSteps];

  // All of them with 128 added: bytes without a sign, of the same bits.
  constexpr TableSteps biased() const {
    TableSteps result{};
    for (int code = 0; code < kTableSteps; ++code)
      result.by_code[code] =
          static_cast<int8_t>(by_code[code] < 0 ? by_code[code] + 128 : by_code[code] - 128);
    return result;
  }
};

// Zeros for kNone.
constexpr TableSteps steps_of(CodeTable table) {
  switch (table) {
    case CodeTable::kIQ4:
      return {{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}};
    case CodeTable::kE2M1:
      return {{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}};
    case CodeTable::kNone:
      break;
  }
  return {};
}

}  // namespace ballast
