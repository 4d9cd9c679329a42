#include "kv/block_pool.h"

#include <algorithm>

#include "base/check.h"

namespace ballast {

BlockPool::BlockPool(int32_t num_blocks) : refs_(static_cast<size_t>(num_blocks) + 1, kFree) {
  free_.reserve(static_cast<size_t>(num_blocks));
  for (int32_t id = num_blocks; id >= 1; --id) free_.push_back(BlockId{id});
}

BlockId BlockPool::allocate() {
  BALLAST_CHECK(!free_.empty());
  const BlockId block = free_.back();
  free_.pop_back();
  refs_[index_of(block)] = 1;
  return block;
}

void BlockPool::take(const std::vector<BlockId>& blocks) {
  for (const BlockId block : blocks) {
    BALLAST_CHECK(is_free(block));
    refs_[index_of(block)] = 0;
  }
  const auto is_taken = [this](BlockId block) { return !is_free(block); };
  free_.erase(std::remove_if(free_.begin(), free_.end(), is_taken), free_.end());
}

void BlockPool::retain(BlockId block) {
  BALLAST_CHECK(!is_free(block));
  ++refs_[index_of(block)];
}

int32_t BlockPool::release(BlockId block) {
  BALLAST_CHECK(refs_[index_of(block)] >= 1);
  return --refs_[index_of(block)];
}

void BlockPool::free(BlockId block) {
  BALLAST_CHECK(refs_[index_of(block)] == 0);
  refs_[index_of(block)] = kFree;
  free_.push_back(block);
}

void BlockPool::check() const {
  BALLAST_CHECK(is_free(kNullBlock));
  std::vector<bool> listed(refs_.size(), false);
  for (const BlockId block : free_) {
    BALLAST_CHECK(block != kNullBlock);
    BALLAST_CHECK(is_free(block));
    BALLAST_CHECK(!listed[index_of(block)]);
    listed[index_of(block)] = true;
  }
  for (size_t id = 1; id < refs_.size(); ++id) BALLAST_CHECK(listed[id] == (refs_[id] == kFree));
}

}  // namespace ballast
