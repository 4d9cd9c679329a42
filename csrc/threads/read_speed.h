// How fast memory can be read here: the limit that decoding is measured against.
#pragma once

#include <cstdint>

#include "threads/thread_pool.h"

namespace ballast {

// Bytes a second, the best of a few passes over num_bytes of memory by all threads of the pool. Choose
// num_bytes well beyond the caches. Throws std::bad_alloc.
double measure_read_speed(ThreadPool& pool, int64_t num_bytes);

}  // namespace ballast
