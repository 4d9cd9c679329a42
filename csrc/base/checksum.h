// A checksum of memory at the speed of memory reads. It detects damage, not forgery.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast {

// num_bytes and the address must be multiples of 8. Depends on the order of the bytes.
uint64_t checksum(const void* data, size_t num_bytes);

}  // namespace ballast
