// Strong types for ids, so that a block and a sequence cannot be confused.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast {

enum class BlockId : int32_t {};
enum class SeqId : int64_t {};

// Padding rows read and write here; no request ever holds it. Inside the index it also stands for "no block".
inline constexpr BlockId kNullBlock{0};

// A digest of a client's `cache_salt`: blocks with different salts are never shared.
struct Salt {
  uint64_t low = 0, high = 0;
  friend bool operator==(const Salt& a, const Salt& b) { return a.low == b.low && a.high == b.high; }
};

// The salt of requests without `cache_salt`: they share blocks with each other.
inline constexpr Salt kNoSalt{};

// Tokens before the first one of a row that a step has too, for models that embed n-grams.
inline constexpr int32_t kEarlierTokens = 3;
// In place of a token before the first one of a sequence.
inline constexpr int32_t kNoToken = -1;

constexpr size_t index_of(BlockId block) { return static_cast<size_t>(block); }

}  // namespace ballast
