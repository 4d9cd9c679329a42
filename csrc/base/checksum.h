// A sum over memory that tells damage, at the speed at which memory is read. It does not tell forgery.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast {

// Of num_bytes, a multiple of 8, at an address that 8 divides. Depends on the order of the bytes.
uint64_t checksum(const void* data, size_t num_bytes);

}  // namespace ballast
