// Small ids get types: a block and a sequence can never be swapped.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast {

enum class BlockId : int32_t {};
enum class SeqId : int64_t {};

// Padding rows read and write here; no request ever holds it. Inside the index it also stands for "no block".
inline constexpr BlockId kNullBlock{0};

constexpr size_t index_of(BlockId block) { return static_cast<size_t>(block); }

}  // namespace ballast
