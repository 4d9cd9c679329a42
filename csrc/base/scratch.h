// Memory that one call needs while it runs. The calling thread keeps it for its next calls: fresh memory
// would be mapped and zeroed anew each time, page by page, and given back each time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace ballast {

// A piece of the memory that the thread keeps, at the border of a cache line; nobody has written to it. To be
// given back by the thread that took it, in any order: what is kept is handed out anew once all pieces are
// back.
class ScratchBytes {
 public:
  ScratchBytes() = default;
  // Throws std::bad_alloc when the system refuses.
  explicit ScratchBytes(size_t num_bytes);
  ScratchBytes(ScratchBytes&& other) noexcept
      : own_(std::move(other.own_)), data_(std::exchange(other.data_, nullptr)) {}
  ScratchBytes& operator=(ScratchBytes&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(own_, other.own_);
    return *this;
  }
  ~ScratchBytes();

  uint8_t* data() const { return data_; }

 private:
  // For what did not fit into the kept memory, which grows for the next call.
  struct Free {
    void operator()(uint8_t* bytes) const;
  };
  std::unique_ptr<uint8_t, Free> own_;
  uint8_t* data_ = nullptr;
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
