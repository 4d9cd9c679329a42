// Temporary memory of a call. The calling thread keeps it for later calls; otherwise every call would map,
// zero and unmap memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace ballast {

// A page-aligned buffer with undefined content. A thread keeps its buffers until it ends, each at the largest
// size so far, and hands out the first free one: calls that take buffers in the same order get the same
// buffers, on the memory node of the thread that wrote to them first.
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

// Memory for elements that need neither construction nor destruction.
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
