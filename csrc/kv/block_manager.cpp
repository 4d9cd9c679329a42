#include "kv/block_manager.h"

#include <algorithm>

#include "base/check.h"

namespace ballast {

BlockManager::BlockManager(int32_t num_blocks, int32_t block_tokens, bool prefix_cache,
                           const WindowConfig& window, const StateConfig& states)
    : block_tokens_(static_cast<size_t>(block_tokens)),
      prefix_cache_(prefix_cache),
      pool_(num_blocks),
      index_(num_blocks, block_tokens),
      windows_(num_blocks, block_tokens, window),
      states_(num_blocks, states) {}

BlockId BlockManager::allocate() {
  if (pool_.num_free() == 0) free(index_.evict());
  return pool_.allocate();
}

void BlockManager::free(BlockId block) {
  windows_.drop(block);
  states_.drop(block);
  pool_.free(block);
}

void BlockManager::match(const std::vector<int32_t>& tokens, const Salt& salt, PrefixMatch& match) const {
  if (!prefix_cache_) return;
  keep_known(match);
  std::vector<BlockId>& blocks = match.blocks;
  for (size_t begin = blocks.size() * block_tokens_; begin + block_tokens_ < tokens.size();
       begin += block_tokens_) {
    const BlockId next = index_.find(blocks.empty() ? kNullBlock : blocks.back(), &tokens[begin], salt);
    if (next == kNullBlock) break;
    blocks.push_back(next);
    match.stamps.push_back(index_.stamp(next));
  }
  match.num_usable = std::min(windows_.num_usable(blocks), states_.num_usable(blocks));
}

// A parent outlives its children: if a block still exists, all blocks before it exist too.
void BlockManager::keep_known(PrefixMatch& match) const {
  const std::vector<BlockId>& blocks = match.blocks;
  while (!blocks.empty() && stamp(blocks.back()) != match.stamps.back()) match.resize(blocks.size() - 1);
  if (match.num_hides != num_hides()) match.resize(num_before_hidden(blocks));
  match.num_hides = num_hides();
}

size_t BlockManager::num_before_hidden(const std::vector<BlockId>& blocks) const {
  const auto first =
      std::find_if(blocks.begin(), blocks.end(), [this](BlockId block) { return is_hidden(block); });
  return static_cast<size_t>(first - blocks.begin());
}

// A holder of a block also holds all blocks before it, so held blocks come first.
int32_t BlockManager::num_unheld(const PrefixMatch& match) const {
  const auto end = match.blocks.begin() + static_cast<std::ptrdiff_t>(match.num_usable);
  const auto first =
      std::partition_point(match.blocks.begin(), end, [this](BlockId block) { return is_held(block); });
  return static_cast<int32_t>(end - first);
}

void BlockManager::hold(BlockId block) {
  if (!is_held(block)) index_.unpark(block);
  pool_.retain(block);
}

void BlockManager::hold(const std::vector<BlockId>& blocks) {
  for (const BlockId block : blocks) hold(block);
}

void BlockManager::release(BlockId block) {
  if (pool_.release(block) > 0) return;
  if (index_.contains(block) && !index_.is_hidden(block)) {
    index_.park(block);
    return;
  }
  if (index_.contains(block)) index_.erase(block);
  free(block);
}

void BlockManager::release(std::vector<BlockId>& blocks) {
  for (; !blocks.empty(); blocks.pop_back()) release(blocks.back());
}

void BlockManager::discard(std::vector<BlockId>& table) {
  if (!table.empty() && index_.contains(table.front())) hide(table.front());
  release(table);
}

std::vector<BlockId> BlockManager::hide(BlockId block) {
  const std::vector<BlockId> hidden = index_.hide(block);
  for (auto each = hidden.rbegin(); each != hidden.rend(); ++each) {
    if (is_held(*each)) continue;
    index_.unpark(*each);
    index_.erase(*each);
    free(*each);
  }
  return hidden;
}

void BlockManager::publish(std::vector<BlockId>& table, size_t i, const std::vector<int32_t>& tokens,
                           const Salt& salt) {
  if (!prefix_cache_) return;
  const BlockId parent = i == 0 ? kNullBlock : table[i - 1];
  const int32_t* content = &tokens[i * block_tokens_];
  const BlockId known = index_.find(parent, content, salt);
  if (known == kNullBlock) {
    index_.insert(table[i], parent, content, salt);
    return;
  }
  hold(known);
  windows_.move(table[i], known);
  release(table[i]);
  table[i] = known;
}

std::vector<BlockId> BlockManager::restore(const std::vector<BlockId>& blocks,
                                           const std::vector<BlockId>& parents,
                                           const std::vector<int32_t>& tokens,
                                           const std::vector<Salt>& salts) {
  std::vector<BlockId> taken;
  std::vector<bool> is_taken(static_cast<size_t>(pool_.num_blocks()) + 1, false);
  for (size_t i = blocks.size(); i-- > 0;) {
    const int32_t* content = &tokens[i * block_tokens_];
    const bool has_parent = parents[i] == kNullBlock || is_taken[index_of(parents[i])];
    if (!has_parent || index_.find(parents[i], content, salts[i]) != kNullBlock) continue;
    index_.insert(blocks[i], parents[i], content, salts[i]);
    is_taken[index_of(blocks[i])] = true;
  }
  for (const BlockId block : blocks) {
    if (!is_taken[index_of(block)]) continue;
    taken.push_back(block);
    index_.park(block);
  }
  pool_.take(taken);
  return taken;
}

void BlockManager::check(const std::vector<int32_t>& owners) const {
  pool_.check();
  index_.check();
  int32_t num_held = 0;
  for (int32_t id = 1; id <= pool_.num_blocks(); ++id) {
    const BlockId block{id};
    BALLAST_CHECK(pool_.refs(block) == owners[index_of(block)]);
    BALLAST_CHECK(is_held(block) || !index_.is_hidden(block));
    BALLAST_CHECK(pool_.is_free(block) ? !index_.contains(block) : is_held(block) != index_.is_parked(block));
    BALLAST_CHECK(!pool_.is_free(block) || windows_.of(block) == kNullBlock);
    BALLAST_CHECK(!pool_.is_free(block) || states_.of(block) == kNullSlot);
    num_held += is_held(block);
  }
  BALLAST_CHECK(owners[index_of(kNullBlock)] == 0);
  BALLAST_CHECK(pool_.num_free() + num_cached() + num_held == pool_.num_blocks());
}

void BlockManager::check_published(const std::vector<BlockId>& table, size_t num_published,
                                   const std::vector<int32_t>& tokens, const Salt& salt) const {
  if (!prefix_cache_) return;
  BlockId parent = kNullBlock;
  for (size_t i = 0; i < num_published; ++i) {
    BALLAST_CHECK(index_.matches(table[i], parent, &tokens[i * block_tokens_], salt));
    parent = table[i];
  }
}

}  // namespace ballast
