// A place beside the device's cache for what full blocks hold: slower, larger, with block ids of its own.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/ids.h"
#include "kv/block_manager.h"

namespace ballast {

struct TierConfig {
  int32_t num_blocks;    // usable blocks; ids run 1…num_blocks
  int32_t most_storing;  // most blocks on their way to it
};

// Bookkeeping alone: others move the content, and say when they have. Until then a block is known under its
// tokens, so that nobody stores the same again, but is not served. Blocks arrive in the order in which they
// were sent. One that was given up meanwhile arrives nevertheless, before what was sent to its place since.
class Tier {
 public:
  Tier(const TierConfig& config, int32_t block_tokens);

  // Known blocks that `tokens` begins with, stored or not; see BlockManager::match.
  void match(const std::vector<int32_t>& tokens, const Salt& salt, PrefixMatch& match) const {
    blocks_.match(tokens, salt, match);
  }
  // Whether there are so many on their way that it takes more when one has arrived, and not before.
  bool is_busy() const { return takes_more_ && num_storing() == config_.most_storing; }
  bool is_stored(BlockId block) const { return is_stored_[index_of(block)]; }

  // Holds one block more of what `tokens` begins with, after the `table` of those before it. Returns whether
  // there was one: it is known, or sent from now on. Then `is_sent`: somebody has to bring its content.
  bool extend(std::vector<BlockId>& table, const std::vector<int32_t>& tokens, const Salt& salt,
              bool& is_sent);
  // The block that was sent first has arrived, or was lost: then it serves nobody, and nothing is sent any
  // more.
  void arrive(bool is_whole);

  void hold(const std::vector<BlockId>& blocks) { blocks_.hold(blocks); }
  void release(std::vector<BlockId>& table) { blocks_.release(table); }
  // Releases the end of a table that serves nobody any more, if something was hidden since `num_hides`.
  void release_hidden(std::vector<BlockId>& table, uint64_t& num_hides);
  // Releases the end of a table, from `begin` on.
  void release_from(std::vector<BlockId>& table, size_t begin);
  void hide(BlockId block);  // its content is wrong: it serves nobody, nor does what follows it
  bool is_hidden(BlockId block) const { return blocks_.is_hidden(block); }
  // The known block that `tokens` begins with, or kNullBlock.
  BlockId first(const std::vector<int32_t>& tokens, const Salt& salt) const;

  // Takes in blocks that an earlier process has stored, last to be evicted last; children come before their
  // parents. Nothing may be known yet. `tokens` [blocks, block_tokens], `salts` [blocks]. Throws
  // std::invalid_argument where ids repeat, parents are missing or have another salt.
  void restore(const std::vector<BlockId>& blocks, const std::vector<BlockId>& parents,
               const std::vector<int32_t>& tokens, const std::vector<Salt>& salts);

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
  std::vector<bool> is_stored_;  // by block id
  int32_t num_stored_ = 0;       // of those
  std::deque<Sent> storing_;     // on their way, first sent first
  bool takes_more_ = true;
};

}  // namespace ballast
