// Page-aligned memory from the system, in huge pages if available: zeroed, or mapped from a file in memory. A
// guard page on either side keeps it a separate mapping, which the kernel counts separately, and makes a read
// beyond its last page fail immediately.
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
  // The pages of an open file from its beginning, shared: what is written goes into the file. The file must
  // keep its length while they live, and is not needed open. Throws std::system_error when the system refuses
  // or the file is too short.
  Pages(size_t num_bytes, int file);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  // Bytes of the whole pages that hold them.
  size_t mapped_size() const { return mapped_; }

 private:
  void map_with_guards(size_t border, int protection, int flags, int file);

  uint8_t* data_ = nullptr;
  size_t size_;
  size_t mapped_ = 0;
};

// The size of the system's huge pages, and what is taken, read and summed up at a time.
constexpr size_t kHugePageBytes = size_t{2} << 20;

// The length of a file for num_bytes of memory: whole pages, and a whole huge page at the end if at least
// half of it is used. A multiple of `unit`, the unit of the file's memory.
size_t file_bytes(size_t num_bytes, size_t unit);

// Allocates whole pages that were not written yet, with one system call, near the calling thread. A hint: the
// remaining pages are allocated by page faults.
void take_memory(const Pages& pages, size_t begin, size_t end);

// Takes memory for some bytes of a file that were not written yet, in huge pages where the system gives them,
// near the thread that calls. Throws std::system_error when there is no room.
void take_file_memory(int file, const Pages& pages, size_t begin, size_t end);

// Maps the pages of memory that will be read soon with one system call instead of one fault a page. A hint:
// what cannot be mapped is left to the faults.
void map_ahead(const void* begin, size_t num_bytes);

}  // namespace ballast
