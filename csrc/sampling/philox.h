// Random numbers as a function of (seed, position): Philox4x64-10 of Salmon, Moraes, Dror and Shaw, "Parallel
// random numbers: as easy as 1, 2, 3" (2011), with NumPy's conventions.
#pragma once

#include <cstdint>

namespace ballast {

// The first value, in [0, 1), of numpy.random.Generator(numpy.random.Philox(key=seed,
// counter=position)).random(). position < 2^64 - 1.
inline double philox_uniform(uint64_t seed, uint64_t position) {
  __extension__ typedef unsigned __int128 Wide;
  // NumPy increments the counter before it generates.
  uint64_t counter[4] = {position + 1, 0, 0, 0};
  uint64_t key[2] = {seed, 0};
  for (int round = 0; round < 10; ++round) {
    const Wide first = Wide{0xD2E7470EE14C6C93} * counter[0];
    const Wide second = Wide{0xCA5A826395121157} * counter[2];
    const uint64_t next[4] = {
        static_cast<uint64_t>(second >> 64) ^ counter[1] ^ key[0], static_cast<uint64_t>(second),
        static_cast<uint64_t>(first >> 64) ^ counter[3] ^ key[1], static_cast<uint64_t>(first)};
    for (int i = 0; i < 4; ++i) counter[i] = next[i];
    key[0] += 0x9E3779B97F4A7C15;
    key[1] += 0xBB67AE8584CAA73B;
  }
  return static_cast<double>(counter[0] >> 11) * 0x1p-53;
}

}  // namespace ballast
