// The pool of blocks and the number of requests that hold each block.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace ballast {

// Ids are 1…num_blocks; the null block is never allocated. A block is free, held (refs >= 1), or
// unreferenced (refs == 0): no request holds it, but its content may still serve the prefix cache, so it is
// not on the free list.
class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  int32_t num_blocks() const { return static_cast<int32_t>(refs_.size()) - 1; }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  bool is_free(BlockId block) const { return refs_[index_of(block)] == kFree; }
  int32_t refs(BlockId block) const { return is_free(block) ? 0 : refs_[index_of(block)]; }

  BlockId allocate();                             // a free block, held once; there must be one
  void take(const std::vector<BlockId>& blocks);  // allocates these free blocks
  void retain(BlockId block);                     // adds a holder; the block must not be free
  // Removes a holder and returns how many are left. At 0 the caller frees or caches the block.
  int32_t release(BlockId block);
  void free(BlockId block);  // back to the free list; the block must have no holder

  void check() const;

 private:
  static constexpr int32_t kFree = -1;

  std::vector<int32_t> refs_;  // by block id
  std::vector<BlockId> free_;  // a stack: the block freed last is handed out first
};

}  // namespace ballast
