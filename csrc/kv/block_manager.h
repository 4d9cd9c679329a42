// Blocks for requests: pool and prefix index together. A block leaves the index only when it is allocated
// again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "kv/block_pool.h"
#include "kv/prefix_index.h"
#include "kv/state_slots.h"
#include "kv/window_blocks.h"

namespace ballast {

// The cached blocks at the beginning of a prompt, as of the last lookup.
struct PrefixMatch {
  std::vector<BlockId> blocks;
  std::vector<uint64_t> stamps;  // of the blocks, see PrefixIndex
  uint64_t num_hides = 0;        // see PrefixIndex
  // Of the blocks, those after which a request can begin, see WindowBlocks and StateSlots; without windows
  // and states all of them.
  size_t num_usable = 0;

  void resize(size_t num_blocks) {
    blocks.resize(num_blocks), stamps.resize(num_blocks);
    num_usable = std::min(num_usable, num_blocks);
  }
};

class BlockManager {
 public:
  BlockManager(int32_t num_blocks, int32_t block_tokens, bool prefix_cache, const WindowConfig& window = {},
               const StateConfig& states = {});

  int32_t num_available() const { return pool_.num_free() + index_.num_parked(); }  // free or evictable
  int32_t num_cached() const { return index_.num_parked(); }
  int32_t num_held() const { return pool_.num_blocks() - num_available(); }
  int32_t num_free() const { return pool_.num_free(); }

  // The cached block that allocate() would evict, or kNullBlock.
  BlockId next_evicted() const { return pool_.num_free() == 0 ? index_.first_in_line() : kNullBlock; }
  BlockId allocate();  // evicts the least recently released cached block when none is free

  // The longest run of cached blocks at the beginning of `tokens` that leaves at least one token to compute,
  // because sampling needs the logits of a computed token. No block is held yet. `match` is empty or the
  // result of an earlier lookup of the same tokens and salt; then only changes of the cache since are
  // examined.
  void match(const std::vector<int32_t>& tokens, const Salt& salt, PrefixMatch& match) const;
  // Reduces an earlier match to its valid part.
  void keep_known(PrefixMatch& match) const;
  // The block that holds `content` [block_tokens] after `parent`, or kNullBlock.
  BlockId find(BlockId parent, const int32_t* content, const Salt& salt) const {
    return index_.find(parent, content, salt);
  }
  // Whether the cache has other tokens where those of a match's next block are: `num_tokens` in all.
  bool branches_after(const PrefixMatch& match, size_t num_tokens) const {
    return !match.blocks.empty() && (match.blocks.size() + 1) * block_tokens_ < num_tokens &&
           index_.has_children(match.blocks.back());
  }
  // Number of usable blocks of a match that no request holds.
  int32_t num_unheld(const PrefixMatch& match) const;
  void hold(BlockId block);
  void hold(const std::vector<BlockId>& blocks);
  void release(BlockId block);
  void release(std::vector<BlockId>& blocks);  // tail first, see PrefixIndex; leaves the list empty
  // Releases a table whose content may be wrong: its blocks, and blocks that follow them, are no longer
  // matched. Other holders keep their blocks.
  void discard(std::vector<BlockId>& table);

  // Removes a block, and all that follow it, from matching. Holders keep their blocks; unheld ones become
  // free immediately. Returns all removed blocks.
  std::vector<BlockId> hide(BlockId block);
  // See PrefixIndex; 0 for a block that is not in the cache.
  uint64_t stamp(BlockId block) const { return index_.contains(block) ? index_.stamp(block) : 0; }
  bool is_hidden(BlockId block) const { return index_.is_hidden(block); }
  // Whether a lookup can find a block.
  bool is_known(BlockId block) const { return index_.contains(block) && !is_hidden(block); }
  bool has_prefix_cache() const { return prefix_cache_; }
  uint64_t num_hides() const { return index_.num_hides(); }
  // Number of leading blocks of a chain before the first hidden one.
  size_t num_before_hidden(const std::vector<BlockId>& blocks) const;
  // Takes in content of an earlier life of these blocks, which are all free, as cached: `parents`,
  // `tokens` [blocks, block_tokens] and `salts` as published, children before their parents, the last to be
  // evicted last. Returns those taken: of equal content one.
  std::vector<BlockId> restore(const std::vector<BlockId>& blocks, const std::vector<BlockId>& parents,
                               const std::vector<int32_t>& tokens, const std::vector<Salt>& salts);

  // Make block `i` of a request's table known to the cache, now that `tokens` fill it. When the same content
  // is already there the table takes that block and gives its own back. Blocks before `i` must be published.
  void publish(std::vector<BlockId>& table, size_t i, const std::vector<int32_t>& tokens, const Salt& salt);

  // What layers with a window keep of the blocks. A request holds a block while it needs its window block.
  WindowBlocks& windows() { return windows_; }
  const WindowBlocks& windows() const { return windows_; }
  // The recurrent state after some of the blocks.
  StateSlots& states() { return states_; }
  const StateSlots& states() const { return states_; }

  // `owners`: for each block id, how many tables hold it.
  void check(const std::vector<int32_t>& owners) const;
  // Whether the first `num_published` blocks of a table are known under exactly these tokens and this salt.
  void check_published(const std::vector<BlockId>& table, size_t num_published,
                       const std::vector<int32_t>& tokens, const Salt& salt) const;

 private:
  bool is_held(BlockId block) const { return pool_.refs(block) > 0; }
  void free(BlockId block);
  size_t block_tokens_;
  bool prefix_cache_;
  BlockPool pool_;
  PrefixIndex index_;
  WindowBlocks windows_;
  StateSlots states_;
};

}  // namespace ballast
