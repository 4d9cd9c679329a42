// A tier of the KV cache: slower and larger storage for full blocks, with its own block ids.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/ids.h"
#include "kv/block_manager.h"

namespace ballast {

struct TierConfig {
  int32_t num_blocks;    // usable blocks; ids run 1…num_blocks
  int32_t most_storing;  // maximum number of blocks in transfer to it
};

// Does only the bookkeeping: the caller moves the content and reports when it has arrived. Until then, a
// block is known by its tokens, so that it is not stored twice, but is not served. Blocks arrive in the order
// in which they were sent. An evicted one still arrives, before the block that was sent to its slot
// afterwards.
class Tier {
 public:
  Tier(const TierConfig& config, int32_t block_tokens);

  // Known blocks that `tokens` begins with, stored or not; see BlockManager::match.
  void match(const std::vector<int32_t>& tokens, const Salt& salt, PrefixMatch& match) const {
    blocks_.match(tokens, salt, match);
  }
  // Whether the maximum number of stores is pending: the tier accepts the next when one has arrived.
  bool is_busy() const { return takes_more_ && num_storing() == config_.most_storing; }
  bool is_stored(BlockId block) const { return is_stored_[index_of(block)]; }
  // Whether a block also holds what layers with a window keep of its tokens.
  bool has_window(BlockId block) const { return has_window_[index_of(block)]; }
  void note_window(BlockId block, bool has_window) { has_window_[index_of(block)] = has_window; }

  // Adds the block of `tokens` that follows the blocks in `table`. Returns false if the tier cannot take one.
  // Sets `is_sent` if the block is new: the caller must then copy its content.
  bool extend(std::vector<BlockId>& table, const std::vector<int32_t>& tokens, const Salt& salt,
              bool& is_sent);
  // Completes the oldest pending store. If it failed (`is_whole` is false), its block is not served, and no
  // further stores are attempted.
  void arrive(bool is_whole);

  void hold(const std::vector<BlockId>& blocks) { blocks_.hold(blocks); }
  void release(std::vector<BlockId>& table) { blocks_.release(table); }
  // Releases the blocks at the end of a table that became hidden since `num_hides`.
  void release_hidden(std::vector<BlockId>& table, uint64_t& num_hides);
  // Releases the end of a table, from `begin` on.
  void release_from(std::vector<BlockId>& table, size_t begin);
  void hide(BlockId block);  // its content is wrong: excludes it and all that follow it from matching
  bool is_hidden(BlockId block) const { return blocks_.is_hidden(block); }
  // The known block that `tokens` begins with, or kNullBlock.
  BlockId first(const std::vector<int32_t>& tokens, const Salt& salt) const;

  // Adopts blocks that an earlier process has stored, in the order of eviction; children come before their
  // parents. The tier must be empty. `tokens` [blocks, block_tokens], `salts` and `have_windows` [blocks], or
  // none if no block has one; see has_window. Throws std::invalid_argument where ids repeat, parents are
  // missing or have another salt.
  void restore(const std::vector<BlockId>& blocks, const std::vector<BlockId>& parents,
               const std::vector<int32_t>& tokens, const std::vector<Salt>& salts,
               const std::vector<bool>& have_windows = {});

  int32_t num_blocks() const { return config_.num_blocks; }
  int32_t num_known() const { return config_.num_blocks - blocks_.num_free(); }
  int32_t num_stored() const { return num_stored_; }
  int32_t num_storing() const { return static_cast<int32_t>(storing_.size()); }

  // `owners`: for each block id, how many tables hold it.
  void check(const std::vector<int32_t>& owners) const { blocks_.check(owners); }
  void check_table(const std::vector<BlockId>& table, const std::vector<int32_t>& tokens,
                   const Salt& salt) const {
    blocks_.check_published(table, table.size(), tokens, salt);
  }

 private:
  struct Sent {
    BlockId block;
    uint64_t stamp;  // see PrefixIndex: whether it is still what was sent
  };

  bool can_send() const {
    return takes_more_ && num_storing() < config_.most_storing && blocks_.num_available() > 0;
  }
  void set_stored(BlockId block, bool is_stored);

  TierConfig config_;
  size_t block_tokens_;
  BlockManager blocks_;
  std::vector<bool> is_stored_;   // by block id
  std::vector<bool> has_window_;  // by block id
  int32_t num_stored_ = 0;        // of those
  std::deque<Sent> storing_;      // on their way, first sent first
  bool takes_more_ = true;
};

}  // namespace ballast
