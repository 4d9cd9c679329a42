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
  // The same of recurrent states, which are stored with blocks.
  int32_t num_states = 0;
  int32_t most_storing_states = 0;
  // Whether it takes the states of conversations that nothing continues for a while, instead of all.
  bool takes_rested_states = false;
  int32_t blocks_per_state = 0;  // blocks that take as long to bring back as a state
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

  // The state that a block holds, or the null slot. As for blocks, it is known only when it has arrived.
  StateSlot state_of(BlockId block) const { return blocks_.states().of(block); }
  bool takes_states() const { return config_.num_states > 0; }
  bool takes_rested_states() const { return config_.takes_rested_states; }
  bool is_busy_with_states() const {
    return takes_more_ && static_cast<int32_t>(storing_states_.size()) == config_.most_storing_states;
  }
  bool is_storing_states() const { return !storing_states_.empty(); }
  // Whether a state is there or on its way.
  bool has_or_gets_state(BlockId block) const;
  // Acquires a slot for the state of a known block, which may evict that of another block; the null slot if
  // the tier cannot take one now. Otherwise the caller must copy its content.
  StateSlot send_state(BlockId block, const SnapshotUse& use = {});
  // Completes the oldest pending store of a state.
  void state_arrives(bool is_whole);
  // As of StateSlots, of known blocks; also for states on their way.
  void use_state(BlockId block, const SnapshotUse& use);
  const SnapshotUse& use_of_state(BlockId block) const { return blocks_.states().use_of(block); }
  void change_uses(int64_t request, const std::function<void(SnapshotUse&)>& change);
  // A state that is being fetched is not evicted.
  void hold_state(StateSlot state) { blocks_.states().hold(state); }
  void release_state(StateSlot state) { blocks_.states().release(state); }
  // Its content is wrong: its block has no state any more. It may be held.
  void drop_state(StateSlot state) { blocks_.states().drop(blocks_.states().block_of(state)); }
  // See PrefixIndex; 0 for a block that is not known.
  uint64_t stamp(BlockId block) const { return is_hidden(block) ? 0 : blocks_.stamp(block); }

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
  // parents. The tier must be empty. `tokens` [blocks, block_tokens], `salts`, `have_windows` and `states`
  // [blocks], each of the last two empty if no block has one; see has_window and state_of. Throws
  // std::invalid_argument where ids repeat, parents are missing or have another salt.
  void restore(const std::vector<BlockId>& blocks, const std::vector<BlockId>& parents,
               const std::vector<int32_t>& tokens, const std::vector<Salt>& salts,
               const std::vector<bool>& have_windows = {}, const std::vector<StateSlot>& states = {});

  int32_t num_blocks() const { return config_.num_blocks; }
  int32_t num_known() const { return config_.num_blocks - blocks_.num_free(); }
  int32_t num_stored() const { return num_stored_; }
  int32_t num_states() const { return blocks_.states().num_snapshots(); }
  int32_t num_storing() const { return static_cast<int32_t>(storing_.size()); }

  // `owners`: for each block id, how many tables hold it. `holders`: for each state, how many fetches do.
  void check(const std::vector<int32_t>& owners, std::vector<int32_t> holders = {}) const;
  void check_table(const std::vector<BlockId>& table, const std::vector<int32_t>& tokens,
                   const Salt& salt) const {
    blocks_.check_published(table, table.size(), tokens, salt);
  }

 private:
  struct Sent {
    BlockId block;
    uint64_t stamp;  // see PrefixIndex: whether it is still what was sent
  };

  struct SentState {
    StateSlot state;
    Sent of;
    SnapshotUse use;
  };

  void check_restored_states(const std::vector<BlockId>& blocks, const std::vector<StateSlot>& states) const;
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
  std::deque<SentState> storing_states_;
  bool takes_more_ = true;
};

}  // namespace ballast
