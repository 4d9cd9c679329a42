// The two lanes of steps.
#pragma once

#include <cstdint>

namespace ballast {

// Each lane has at most one outstanding step. Steps of both lanes run concurrently.
enum class Lane : uint8_t {
  kDecode = 0,   // decoding requests, and prompts that are computed alongside them
  kPrefill = 1,  // passes over prompts only, where a device streams the experts by itself
};

}  // namespace ballast
