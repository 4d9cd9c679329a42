// Decodes super-blocks whose codes are digits of base 3.
#pragma once

#include "cpu/panel_layout.h"

namespace ballast {
namespace {

// The top two bits of 3/4 of a byte, rounded down, computed as averages of the byte minus one.
BALLAST_INLINE Bytes first_digit(Bytes numbers) {
  const Bytes less = subtract_one(numbers);
  const Bytes quarters = average_bytes(less, average_bytes(less, bytes_of(0)));
  return and_bytes(shift_right<6>(quarters), bytes_of(3));
}

// Decodes the rows of a vector of a super-block, one quad per kStride bytes.
template <int kStride>
BALLAST_INLINE void decode_trits(const uint8_t* block, int row_vector, uint8_t* out) {
  constexpr int kQuads = kSuperGroups * kGroupQuads;
  for (int line = 0; line < kTritLines; ++line) {
    Bytes numbers = load_bytes(block + line * kQuadBytes + row_vector * kVectorBytes);
    for (int digit = 0; digit < kTritsPerByte; ++digit) {
      const int quad = line * kTritsPerByte + digit;
      if (quad < kQuads) store_codes(out + quad * kStride, first_digit(numbers));
      numbers = add_bytes(numbers, add_bytes(numbers, numbers));
    }
  }
}

}  // namespace
}  // namespace ballast
