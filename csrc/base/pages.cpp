#include "base/pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <system_error>

namespace ballast {
namespace {

size_t rounded_up(size_t num_bytes, size_t unit) { return (num_bytes + unit - 1) / unit * unit; }

size_t whole_pages(size_t num_bytes) { return rounded_up(num_bytes, page_bytes()); }

// Bytes to map for num_bytes. Reads from huge pages are faster, but a huge page always takes its whole size.
// So the last huge page is completed only if at least half of it is used.
size_t mapped_bytes(size_t num_bytes) {
  const size_t rest = num_bytes % kHugePageBytes;
  return rest >= kHugePageBytes / 2 ? num_bytes - rest + kHugePageBytes : whole_pages(num_bytes);
}

size_t with_guards(size_t mapped) { return page_bytes() + mapped + page_bytes(); }

[[noreturn]] void fail(int error, const char* what) {
  throw std::system_error(error, std::generic_category(), what);
}

void allocate(int file, size_t begin, size_t end) {
  const int error = posix_fallocate(file, static_cast<off_t>(begin), static_cast<off_t>(end - begin));
  if (error != 0) fail(error, "no memory for a file of packed weights");
}

}  // namespace

size_t page_bytes() {
  static const size_t num_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return num_bytes;
}

Pages::Pages(size_t num_bytes) : size_(num_bytes), mapped_(mapped_bytes(num_bytes)) {
  if (num_bytes == 0) return;
  const bool wants_huge = mapped_ >= kHugePageBytes;
  map_with_guards(wants_huge ? kHugePageBytes : page_bytes(), PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1);
  if (data_ == nullptr) throw std::bad_alloc();
  // A hint: a system without free huge pages uses small ones.
  if (wants_huge) madvise(data_, mapped_, MADV_HUGEPAGE);
}

Pages::Pages(size_t num_bytes, int file) : size_(num_bytes) {
  if (num_bytes == 0) return;
  struct stat found;
  if (fstat(file, &found) != 0) fail(errno, "fstat");
  mapped_ = static_cast<size_t>(found.st_size);
  if (mapped_ < num_bytes) fail(EINVAL, "a file of packed weights is too short");
  map_with_guards(kHugePageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file);
  if (data_ == nullptr) fail(errno, "mmap");
  madvise(data_, mapped_, MADV_HUGEPAGE);
}

// Maps mapped_ bytes that begin at a multiple of `border`; data_ stays null when the system refuses. Huge
// pages must be aligned to their size: what is mapped too much before and behind is unmapped again.
void Pages::map_with_guards(size_t border, int protection, int flags, int file) {
  const size_t reserved = with_guards(mapped_) + border - page_bytes();
  void* address = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return;
  uint8_t* begin = static_cast<uint8_t*>(address);
  uint8_t* data = begin + page_bytes();
  data += (border - reinterpret_cast<uintptr_t>(data) % border) % border;
  uint8_t* kept = data - page_bytes();
  uint8_t* kept_end = kept + with_guards(mapped_);
  if (kept > begin) munmap(begin, static_cast<size_t>(kept - begin));
  if (begin + reserved > kept_end) munmap(kept_end, static_cast<size_t>(begin + reserved - kept_end));
  if (mmap(data, mapped_, protection, flags | MAP_FIXED, file, 0) == MAP_FAILED) {
    const int error = errno;
    munmap(kept, with_guards(mapped_));
    errno = error;
    return;
  }
  data_ = data;
}

size_t file_bytes(size_t num_bytes, size_t unit) { return rounded_up(mapped_bytes(num_bytes), unit); }

void take_memory(const Pages& pages, size_t begin, size_t end) {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, since Linux 5.14; older headers lack the name
  if (madvise(pages.data() + begin, end - begin, kPopulateWrite) != 0) pages.data()[begin] = 0;
}

void take_file_memory(int file, const Pages& pages, size_t begin, size_t end) {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, since Linux 6.1; older headers lack the name
  const size_t size = end - begin;
  if (size == kHugePageBytes && begin % kHugePageBytes == 0) {
    // The first small page says where the memory is to lie; the huge page then takes its place.
    allocate(file, begin, begin + page_bytes());
    if (madvise(pages.data() + begin, size, kCollapse) == 0) return;
  }
  allocate(file, begin, end);
}

void map_ahead(const void* begin, size_t num_bytes) {
  constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, since Linux 5.14; older headers lack the name
  const uintptr_t first = reinterpret_cast<uintptr_t>(begin) / page_bytes() * page_bytes();
  const uintptr_t end = reinterpret_cast<uintptr_t>(begin) + num_bytes;
  madvise(reinterpret_cast<void*>(first), whole_pages(end - first), kPopulateRead);
}

Pages::~Pages() {
  if (data_ != nullptr) munmap(data_ - page_bytes(), with_guards(mapped_));
}

}  // namespace ballast
