#include "base/scratch.h"

#include <sanitizer/asan_interface.h>

#include <deque>
#include <memory>

#include "base/check.h"
#include "base/pages.h"

namespace ballast {

// A piece that a thread keeps. AddressSanitizer is told which of its bytes are out.
struct ScratchBytes::Kept {
  ~Kept() { set_pages(nullptr); }

  void set_pages(std::unique_ptr<Pages> next) {
    if (pages != nullptr) ASAN_UNPOISON_MEMORY_REGION(pages->data(), pages->size());
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
  ASAN_POISON_MEMORY_REGION(kept.pages->data(), kept.pages->size());
  ASAN_UNPOISON_MEMORY_REGION(kept.pages->data(), num_bytes);
  kept.is_out = true;
  kept_ = &kept;
}

ScratchBytes::~ScratchBytes() {
  if (kept_ == nullptr) return;
  BALLAST_CHECK(owner_ == &Thread::here());
  ASAN_POISON_MEMORY_REGION(kept_->pages->data(), kept_->pages->size());
  kept_->is_out = false;
}

uint8_t* ScratchBytes::data() const { return kept_ == nullptr ? nullptr : kept_->pages->data(); }

}  // namespace ballast
