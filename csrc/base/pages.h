// Memory straight from the system, zeroed, at a page border; huge pages are asked for. It lies between two
// pages that nobody may touch: it stays a mapping of its own, which the kernel counts by itself, and reading
// beyond its last page, small or huge, fails at once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast {

// Of the system's small pages: 4 KiB, on some Arm systems 64.
size_t page_bytes();

class Pages {
 public:
  // Throws std::bad_alloc when the system refuses.
  explicit Pages(size_t num_bytes);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  // Bytes of the whole pages that hold them.
  size_t mapped_size() const;

 private:
  uint8_t* data_ = nullptr;
  size_t size_;
};

// Maps the pages of memory that will be read soon, all at once instead of by one fault after the other. Only
// a wish: what cannot be mapped is left to the faults.
void map_ahead(const void* begin, size_t num_bytes);

}  // namespace ballast
