// Splits a range of indices into tasks: equal chunks, the last one possibly shorter.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ballast {

struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
};

// 0…total in chunks of chunk_size (> 0). The cuts depend on these two alone, never on the number of threads.
class Chunks {
 public:
  Chunks(int64_t total, int64_t chunk_size) : total_(total), chunk_size_(chunk_size) {}

  int64_t count() const { return (total_ + chunk_size_ - 1) / chunk_size_; }

  IndexRange operator[](int64_t chunk) const {
    return {chunk * chunk_size_, std::min((chunk + 1) * chunk_size_, total_)};
  }

 private:
  int64_t total_;
  int64_t chunk_size_;
};

}  // namespace ballast
