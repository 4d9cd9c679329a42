#include "base/pages.h"

#include <sys/mman.h>

#include <new>

namespace ballast {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;

size_t whole_pages(size_t num_bytes) { return (num_bytes + kPage - 1) / kPage * kPage; }

}  // namespace

Pages::Pages(size_t num_bytes) : size_(num_bytes) {
  if (num_bytes == 0) return;
  // A huge page needs a border of its own size: map one more, then give back what lies before and behind.
  const bool wants_huge = num_bytes >= kHugePage;
  const size_t kept = whole_pages(num_bytes) + kPage;
  const size_t mapped = kept + (wants_huge ? kHugePage : 0);
  void* begin = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<uint8_t*>(begin);
  if (wants_huge) {
    const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
    if (before > 0) munmap(begin, before);
    data_ += before;
    if (mapped - before > kept) munmap(data_ + kept, mapped - before - kept);
    // Only a wish: a system that has none to give goes on with small ones.
    madvise(data_, kept - kPage, MADV_HUGEPAGE);
  }
  if (mprotect(data_ + kept - kPage, kPage, PROT_NONE) != 0) {
    munmap(data_, kept);
    throw std::bad_alloc();
  }
}

void map_ahead(const void* begin, size_t num_bytes) {
  constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, since Linux 5.14; older headers lack the name
  const uintptr_t first = reinterpret_cast<uintptr_t>(begin) / kPage * kPage;
  const uintptr_t end = reinterpret_cast<uintptr_t>(begin) + num_bytes;
  madvise(reinterpret_cast<void*>(first), whole_pages(end - first), kPopulateRead);
}

Pages::~Pages() {
  if (data_ != nullptr) munmap(data_, whole_pages(size_) + kPage);
}

}  // namespace ballast
