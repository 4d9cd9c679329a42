// Memory that one call needs while it runs. The calling thread keeps it for its next calls: fresh memory
// would be mapped and zeroed anew each time, page by page, and given back each time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace ballast {

// A piece of memory at a page's border, with what earlier calls left in it. A thread keeps its pieces until
// it ends, each as large as it ever was, and hands out the first one that is free: calls that take pieces in
// the same order find each where it was, on the memory node of whoever wrote to it first.
class ScratchBytes {
 public:
  ScratchBytes() = default;
  // Throws std::bad_alloc when the system refuses.
  explicit ScratchBytes(size_t num_bytes);
  ScratchBytes(ScratchBytes&& other) noexcept
      : owner_(other.owner_), kept_(std::exchange(other.kept_, nullptr)) {}
  ScratchBytes& operator=(ScratchBytes&& other) noexcept {
    std::swap(owner_, other.owner_);
    std::swap(kept_, other.kept_);
    return *this;
  }
  // On the thread that took it.
  ~ScratchBytes();

  // Null for a piece that was moved away or never taken.
  uint8_t* data() const;

 private:
  struct Kept;
  struct Thread;

  const Thread* owner_ = nullptr;
  Kept* kept_ = nullptr;
};

// Room for elements that need neither construction nor destruction.
template <class T>
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(int64_t num) : bytes_(static_cast<size_t>(num) * sizeof(T)) {}

  T* get() const { return reinterpret_cast<T*>(bytes_.data()); }

 private:
  ScratchBytes bytes_;
};

}  // namespace ballast
