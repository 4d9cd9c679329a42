#include "base/scratch.h"

#include <deque>
#include <memory>

#include "base/check.h"
#include "base/pages.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace ballast {
namespace {

void forbid([[maybe_unused]] const uint8_t* begin, [[maybe_unused]] size_t num_bytes) {
#ifdef __SANITIZE_ADDRESS__
  ASAN_POISON_MEMORY_REGION(begin, num_bytes);
#endif
}

void allow([[maybe_unused]] const uint8_t* begin, [[maybe_unused]] size_t num_bytes) {
#ifdef __SANITIZE_ADDRESS__
  ASAN_UNPOISON_MEMORY_REGION(begin, num_bytes);
#endif
}

}  // namespace

// A buffer that a thread keeps. AddressSanitizer is informed about which of its bytes are in use.
struct ScratchBytes::Kept {
  ~Kept() { set_pages(nullptr); }

  void set_pages(std::unique_ptr<Pages> next) {
    if (pages != nullptr) allow(pages->data(), pages->size());
    pages = std::move(next);
  }

  bool is_out = false;
  std::unique_ptr<Pages> pages;
};

struct ScratchBytes::Thread {
  static Thread& here() {
    thread_local Thread thread;
    return thread;
  }

  Kept& first_free() {
    for (Kept& kept : all) {
      if (!kept.is_out) return kept;
    }
    return all.emplace_back();
  }

  std::deque<Kept> all;
};

ScratchBytes::ScratchBytes(size_t num_bytes) : owner_(&Thread::here()) {
  Kept& kept = Thread::here().first_free();
  if (kept.pages == nullptr || kept.pages->size() < num_bytes) {
    kept.set_pages(nullptr);
    kept.set_pages(std::make_unique<Pages>(num_bytes > 0 ? num_bytes : 1));
  }
  forbid(kept.pages->data(), kept.pages->size());
  allow(kept.pages->data(), num_bytes);
  kept.is_out = true;
  kept_ = &kept;
}

ScratchBytes::~ScratchBytes() {
  if (kept_ == nullptr) return;
  BALLAST_CHECK(owner_ == &Thread::here());
  forbid(kept_->pages->data(), kept_->pages->size());
  kept_->is_out = false;
}

uint8_t* ScratchBytes::data() const { return kept_ == nullptr ? nullptr : kept_->pages->data(); }

}  // namespace ballast
