#include "base/scratch.h"

#include <sanitizer/asan_interface.h>

#include <algorithm>
#include <new>

#include "base/pages.h"

namespace ballast {
namespace {

constexpr size_t kLine = 64;

// What a thread keeps: pieces lie side by side in one block, with a line between them that belongs to nobody.
// AddressSanitizer is told which bytes are out.
class Kept {
 public:
  ~Kept() { set_block(nullptr); }

  // Null where the block is too small for the piece; what it would have taken is counted all the same.
  uint8_t* take(size_t num_bytes) {
    if (num_out_ == 0 && size() < most_taken_) {
      set_block(nullptr);
      set_block(std::make_unique<Pages>(most_taken_));
    }
    const size_t begin = taken_;
    taken_ += (num_bytes + kLine - 1) / kLine * kLine + kLine;
    most_taken_ = std::max(most_taken_, taken_);
    ++num_out_;
    if (taken_ > size()) return nullptr;
    ASAN_UNPOISON_MEMORY_REGION(block_->data() + begin, num_bytes);
    return block_->data() + begin;
  }

  void give_back() {
    if (--num_out_ > 0) return;
    taken_ = 0;
    if (block_ != nullptr) ASAN_POISON_MEMORY_REGION(block_->data(), block_->size());
  }

 private:
  size_t size() const { return block_ == nullptr ? 0 : block_->size(); }

  void set_block(std::unique_ptr<Pages> block) {
    if (block_ != nullptr) ASAN_UNPOISON_MEMORY_REGION(block_->data(), block_->size());
    block_ = std::move(block);
    if (block_ != nullptr) ASAN_POISON_MEMORY_REGION(block_->data(), block_->size());
  }

  std::unique_ptr<Pages> block_;
  size_t taken_ = 0;       // by pieces that are out, or were when the last one was taken
  size_t most_taken_ = 0;  // ever
  size_t num_out_ = 0;
};

thread_local Kept kept;

}  // namespace

void ScratchBytes::Free::operator()(uint8_t* bytes) const {
  operator delete[](bytes, std::align_val_t{kLine});
}

ScratchBytes::ScratchBytes(size_t num_bytes) : data_(kept.take(num_bytes)) {
  if (data_ != nullptr) return;
  own_.reset(new (std::align_val_t{kLine}, std::nothrow) uint8_t[num_bytes]);
  data_ = own_.get();
  if (data_ != nullptr) return;
  kept.give_back();
  throw std::bad_alloc();
}

ScratchBytes::~ScratchBytes() {
  if (data_ != nullptr) kept.give_back();
}

}  // namespace ballast
