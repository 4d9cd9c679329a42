#include "base/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace ballast {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t whole_pages(size_t num_bytes) { return (num_bytes + page_bytes() - 1) / page_bytes() * page_bytes(); }

// Bytes to map for num_bytes. Small pages are read more slowly than huge ones, and a huge page takes all of
// its memory: so the last huge page is filled up only where half of it or more is used.
size_t mapped_bytes(size_t num_bytes) {
  const size_t rest = num_bytes % kHugePage;
  return rest >= kHugePage / 2 ? num_bytes - rest + kHugePage : whole_pages(num_bytes);
}

size_t with_guards(size_t num_bytes) { return page_bytes() + mapped_bytes(num_bytes) + page_bytes(); }

}  // namespace

size_t page_bytes() {
  static const size_t num_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return num_bytes;
}

Pages::Pages(size_t num_bytes) : size_(num_bytes) {
  if (num_bytes == 0) return;
  // Huge pages must be aligned to their size: map one more, then unmap what lies before and behind.
  const size_t wanted = mapped_bytes(num_bytes);
  const bool wants_huge = wanted >= kHugePage;
  const size_t border = wants_huge ? kHugePage : page_bytes();
  const size_t mapped = with_guards(num_bytes) + border - page_bytes();
  void* address = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();
  uint8_t* begin = static_cast<uint8_t*>(address);
  data_ = begin + page_bytes();
  data_ += (border - reinterpret_cast<uintptr_t>(data_) % border) % border;
  uint8_t* kept = data_ - page_bytes();
  uint8_t* kept_end = kept + with_guards(num_bytes);
  if (kept > begin) munmap(begin, static_cast<size_t>(kept - begin));
  if (begin + mapped > kept_end) munmap(kept_end, static_cast<size_t>(begin + mapped - kept_end));
  if (mprotect(data_, wanted, PROT_READ | PROT_WRITE) != 0) {
    munmap(kept, with_guards(num_bytes));
    throw std::bad_alloc();
  }
  // A hint: a system without huge pages to give uses small ones.
  if (wants_huge) madvise(data_, wanted, MADV_HUGEPAGE);
}

void map_ahead(const void* begin, size_t num_bytes) {
  constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, since Linux 5.14; older headers lack the name
  const uintptr_t first = reinterpret_cast<uintptr_t>(begin) / page_bytes() * page_bytes();
  const uintptr_t end = reinterpret_cast<uintptr_t>(begin) + num_bytes;
  madvise(reinterpret_cast<void*>(first), whole_pages(end - first), kPopulateRead);
}

size_t Pages::mapped_size() const { return mapped_bytes(size_); }

Pages::~Pages() {
  if (data_ != nullptr) munmap(data_ - page_bytes(), with_guards(size_));
}

}  // namespace ballast
