// Transposes sixteen rows of bytes with vectors of 16 bytes, which every 64-bit x86 and Arm has.
#pragma once

#include <cstdint>
#include <cstring>

namespace ballast {

typedef uint8_t Bytes16 __attribute__((vector_size(16)));

inline Bytes16 load16(const uint8_t* from) {
  Bytes16 value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
inline void store16(uint8_t* to, Bytes16 value) { std::memcpy(to, &value, sizeof(value)); }
inline Bytes16 same16(int byte) { return Bytes16{} + static_cast<uint8_t>(byte); }

// Bits that cross from byte to byte are the caller's to mask off.
inline Bytes16 shift_right(Bytes16 a, int num_bits) {
  typedef uint16_t Words __attribute__((vector_size(16)));
  return reinterpret_cast<Bytes16>(reinterpret_cast<Words>(a) >> num_bits);
}
inline Bytes16 shift_left(Bytes16 a, int num_bits) {
  typedef uint16_t Words __attribute__((vector_size(16)));
  return reinterpret_cast<Bytes16>(reinterpret_cast<Words>(a) << num_bits);
}

template <class Unit>
struct Interleave {
  typedef Unit Units __attribute__((vector_size(16)));

  // Units of the first halves of a and b in turn: a0 b0 a1 b1 …
  static Bytes16 low(Bytes16 a, Bytes16 b) { return pick<0>(a, b); }
  // And of the second halves.
  static Bytes16 high(Bytes16 a, Bytes16 b) { return pick<8 / sizeof(Unit)>(a, b); }

 private:
  template <int kFrom>
  static Bytes16 pick(Bytes16 bytes_a, Bytes16 bytes_b) {
    const Units a = reinterpret_cast<Units>(bytes_a);
    const Units b = reinterpret_cast<Units>(bytes_b);
    constexpr int f = kFrom;
    if constexpr (sizeof(Unit) == 1) {
      return reinterpret_cast<Bytes16>(__builtin_shufflevector(a, b, f, f + 16, f + 1, f + 17, f + 2, f + 18,
                                                               f + 3, f + 19, f + 4, f + 20, f + 5, f + 21,
                                                               f + 6, f + 22, f + 7, f + 23));
    } else if constexpr (sizeof(Unit) == 2) {
      return reinterpret_cast<Bytes16>(
          __builtin_shufflevector(a, b, f, f + 8, f + 1, f + 9, f + 2, f + 10, f + 3, f + 11));
    } else if constexpr (sizeof(Unit) == 4) {
      return reinterpret_cast<Bytes16>(__builtin_shufflevector(a, b, f, f + 4, f + 1, f + 5));
    } else {
      return reinterpret_cast<Bytes16>(__builtin_shufflevector(a, b, f, f + 2));
    }
  }
};

// to[unit][16 rows]: 16 bytes of each of 16 rows, `stride` bytes apart, cut into units of 1, 2 or 4 bytes.
template <class Unit>
inline void interleave_rows(const uint8_t* rows, int64_t stride, uint8_t* to) {
  constexpr int kUnits = 16 / sizeof(Unit);  // also how many rows make a vector of one unit
  for (int first = 0; first < 16; first += kUnits) {
    Bytes16 lines[kUnits];
    for (int row = 0; row < kUnits; ++row) lines[row] = load16(rows + (first + row) * stride);
    // Rows half the set apart are shuffled together, as often as it takes every row to meet all others.
    for (int step = 1; step < kUnits; step *= 2) {
      Bytes16 shuffled[kUnits];
      for (int i = 0; i < kUnits / 2; ++i) {
        shuffled[2 * i] = Interleave<Unit>::low(lines[i], lines[i + kUnits / 2]);
        shuffled[2 * i + 1] = Interleave<Unit>::high(lines[i], lines[i + kUnits / 2]);
      }
      for (int i = 0; i < kUnits; ++i) lines[i] = shuffled[i];
    }
    for (int unit = 0; unit < kUnits; ++unit) {
      store16(to + (unit * 16 + first) * static_cast<int>(sizeof(Unit)), lines[unit]);
    }
  }
}

}  // namespace ballast
