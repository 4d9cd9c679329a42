// Measures the read bandwidth of memory, which limits the decode speed.
#pragma once

#include <cstdint>

#include "threads/thread_pool.h"

namespace ballast {

// Returns bytes per second: the best of several passes over num_bytes of memory by all threads of the pool.
// num_bytes should be much larger than the caches. Throws std::bad_alloc.
double measure_read_speed(ThreadPool& pool, int64_t num_bytes);

}  // namespace ballast
