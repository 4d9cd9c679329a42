// The blocks of layers with a window. They read the last tokens of a sequence only, so they keep fewer blocks
// than layers that read all tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace ballast {

struct WindowConfig {
  int32_t tokens = 0;      // that a token sees, itself the last; 0: no layer frees what is behind its window
  int32_t num_blocks = 0;  // usable blocks of such layers; ids run 1…num_blocks
};

// Distance of the borders that are kept within a long sequence, in windows.
inline constexpr int32_t kBorderWindows = 16;

struct WindowNeeds {
  int32_t window;
  int32_t num_blocks;  // of the cache
  int32_t block_tokens;
  int32_t max_batch_size;
  int32_t step_tokens;  // of all steps that can be outstanding at the same time
  bool has_tiers;       // as many further requests may fetch from them
};

// Blocks with which requests never lack one: those that requests see, and those that steps write.
int32_t least_window_blocks(const WindowNeeds& needs);
// These, and some for the borders of cached prefixes; at most num_blocks.
int32_t ample_window_blocks(const WindowNeeds& needs);

// A window block belongs to the block of the cache with the same tokens, and has the same holders at most.
// While a request needs it, it stays. Afterwards it is cached, until another one needs the memory or the
// cache gives up its block. Those at borders are given up last: there, later requests are likely to begin.
//
// Without a window every call is without effect, and every block has its keys.
class WindowBlocks {
 public:
  WindowBlocks(int32_t num_cache_blocks, int32_t block_tokens, const WindowConfig& config);

  bool is_used() const { return config_.tokens > 0; }
  int32_t num_needed() const {
    return config_.num_blocks - num_cached() - static_cast<int32_t>(free_.size());
  }
  int32_t num_cached() const { return static_cast<int32_t>(line_.size()); }

  // Index of the first block of a sequence that a token at `position` sees.
  int32_t first_seen(int32_t position) const;
  // Whether block `index` of a sequence is seen by a token that follows its first num_blocks blocks.
  bool is_before_border(int32_t index, int32_t num_blocks) const {
    return index < num_blocks && index >= first_seen(num_blocks * block_tokens_);
  }
  // As is_before_border, for the borders at regular distances.
  bool is_before_regular_border(int32_t index) const;
  // The most leading blocks of a sequence of `num_blocks` after which a request can begin: what it sees is
  // there. is_there(index): whether the keys of a block are.
  template <typename IsThere>
  size_t num_usable(size_t num_blocks, const IsThere& is_there) const {
    if (!is_used()) return num_blocks;
    int32_t end = static_cast<int32_t>(num_blocks);
    int32_t begin = end;  // the blocks from here to `end` are there
    while (begin > first_seen(end * block_tokens_)) {
      --begin;
      if (!is_there(static_cast<size_t>(begin))) end = begin;  // every longer prefix would need it
    }
    return static_cast<size_t>(end);
  }
  // As above, of blocks of the cache.
  size_t num_usable(const std::vector<BlockId>& blocks) const {
    return num_usable(blocks.size(), [&](size_t index) { return of(blocks[index]) != kNullBlock; });
  }

  // The window block of a block of the cache, or kNullBlock.
  BlockId of(BlockId block) const { return nodes_.empty() ? kNullBlock : node(block).window; }
  // A request begins to need the window block, or to write to a new one.
  void need(BlockId block);
  // A request no longer needs it; is_border: see above.
  void release(BlockId block, bool is_border);
  // A request takes the block `to` instead of `from`, which has the same tokens. If it needs the window block
  // of `from`, no other request does.
  void move(BlockId from, BlockId to);
  // A block of the cache is freed; nobody needs its window block.
  void drop(BlockId block);

  // `needs`: for each block of the cache, how many requests need its window block.
  void check(const std::vector<int32_t>& needs) const;

 private:
  struct Node {
    BlockId window = kNullBlock;
    int32_t num_needs = 0;
    bool is_border = false;
    int64_t number = 0;  // in the line
  };
  using Place = std::pair<bool, int64_t>;  // whether at a border, and the number

  Node& node(BlockId block) { return nodes_[index_of(block)]; }
  const Node& node(BlockId block) const { return nodes_[index_of(block)]; }
  static Place place(const Node& node) { return {node.is_border, node.number}; }
  BlockId allocate();

  int32_t block_tokens_;
  WindowConfig config_;
  std::vector<Node> nodes_;        // by block of the cache; empty without a window
  std::vector<BlockId> free_;      // window blocks
  std::map<Place, BlockId> line_;  // blocks of the cache with a window block that nobody needs
  int64_t num_released_ = 0;
};

}  // namespace ballast
