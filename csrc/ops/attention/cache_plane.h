// A plane of the cache: rows of floats, or of floats rounded once to IEEE halves.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/kernels.h"

namespace ballast {

// The kernels of attention; null stands for the reference.
inline const AttentionKernels& attention_kernels(const Kernels* kernels) {
  return kernels == nullptr ? reference_attention() : kernels->attention;
}

struct CachePlane {
  uint8_t* bytes;
  bool is_half;

  int64_t number_bytes() const { return is_half ? 2 : 4; }
  const void* at(int64_t number) const { return bytes + number * number_bytes(); }
  // Writes n numbers from the given one on.
  void write(const Kernels* kernels, int64_t number, const float* from, int64_t n) const {
    uint8_t* to = bytes + number * number_bytes();
    if (is_half) {
      attention_kernels(kernels).narrow(from, n, to);
    } else {
      std::copy_n(from, n, reinterpret_cast<float*>(to));
    }
  }
};

}  // namespace ballast
