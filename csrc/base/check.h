// BALLAST_CHECK tests an invariant that only a bug in this code can break. It is active in release builds.
// `require` tests input.
#pragma once

#include <stdexcept>
#include <string>

namespace ballast {

class InvariantError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] inline void check_failed(const char* expression, const char* file, int line) {
  throw InvariantError(std::string("broken invariant: ") + expression + " at " + file + ":" +
                       std::to_string(line));
}

// Throws std::invalid_argument with this problem unless `holds`.
inline void require(bool holds, const std::string& problem) {
  if (!holds) throw std::invalid_argument(problem);
}

}  // namespace ballast

#define BALLAST_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::ballast::check_failed(#condition, __FILE__, __LINE__))
