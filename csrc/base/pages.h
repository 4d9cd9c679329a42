// Zeroed memory straight from the system, page-aligned, in huge pages where the system gives them. A guard
// page on either side keeps it a mapping of its own, which the kernel counts separately, and makes reading
// beyond its last page fail at once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast {

// The size of the system's small pages: 4 KiB, on some Arm systems 64.
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

// Maps the pages of memory that will be read soon with one system call instead of one fault a page. A hint:
// what cannot be mapped is left to the faults.
void map_ahead(const void* begin, size_t num_bytes);

}  // namespace ballast
