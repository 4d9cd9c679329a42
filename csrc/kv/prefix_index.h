// Finds a full block by its content: its tokens and, through its parent, all tokens before them. Blocks with
// different salts are never equal.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace ballast {

// One node per cached block. A node's key is its parent block, its block_tokens tokens and its salt; a hash
// only selects the chain to search, and the key is always compared. At most one node with the same content is
// not hidden.
//
// A parent is identified by its block id, so it must outlive its children: after its eviction the id would
// refer to other content, and the children would match a wrong prefix. Holders release their blocks tail
// first, so every unheld child is parked before its parent, and evict() takes the block parked longest ago.
class PrefixIndex {
 public:
  PrefixIndex(int32_t num_blocks, int32_t block_tokens);

  // The block holding `tokens` [block_tokens] after `parent` (kNullBlock: at the start), or kNullBlock.
  BlockId find(BlockId parent, const int32_t* tokens, const Salt& salt) const;
  void insert(BlockId block, BlockId parent, const int32_t* tokens, const Salt& salt);  // a new key
  bool contains(BlockId block) const { return nodes_[index_of(block)].present; }
  bool has_children(BlockId block) const { return node(block).first_child != kNullBlock; }
  // The number of the block's latest insert(). If it is unchanged later, content and parent are the same.
  uint64_t stamp(BlockId block) const { return nodes_[index_of(block)].stamp; }
  bool matches(BlockId block, BlockId parent, const int32_t* tokens, const Salt& salt) const;

  void park(BlockId block);    // no holder is left: becomes the last to be evicted
  void unpark(BlockId block);  // held again
  // The block that evict() takes; kNullBlock where none is parked.
  BlockId first_in_line() const { return node(kNullBlock).line_next; }
  BlockId evict();            // erase the block first in line; O(1); num_parked() must not be 0
  void erase(BlockId block);  // forget it; it must have no children and not be parked
  // From now on, find() does not return the block or its present and future descendants. Holders keep them.
  // Returns the hidden blocks, parents before their children.
  std::vector<BlockId> hide(BlockId block);
  bool is_hidden(BlockId block) const { return nodes_[index_of(block)].hidden; }
  uint64_t num_hides() const { return num_hides_; }  // unchanged as long as no block is hidden
  int32_t num_parked() const { return num_parked_; }
  bool is_parked(BlockId block) const { return nodes_[index_of(block)].parked; }

  void check() const;

 private:
  struct Node {
    BlockId parent{};
    BlockId chain_prev{}, chain_next{};  // nodes of one bucket
    BlockId line_prev{}, line_next{};    // parked nodes, longest ago first
    BlockId first_child{};
    BlockId sibling_prev{}, sibling_next{};  // nodes of one parent
    Salt salt;
    uint32_t bucket = 0;
    uint64_t stamp = 0;
    bool present = false, parked = false, hidden = false;
  };

  Node& node(BlockId block) { return nodes_[index_of(block)]; }
  const Node& node(BlockId block) const { return nodes_[index_of(block)]; }
  uint32_t bucket_of(BlockId parent, const int32_t* tokens, const Salt& salt) const;
  void leave_chain(const Node& left);
  void leave_parent(const Node& left);

  int32_t block_tokens_;
  std::vector<Node> nodes_;       // by block id; node 0 closes the ring of parked nodes
  std::vector<int32_t> tokens_;   // [blocks, block_tokens]
  std::vector<BlockId> buckets_;  // first node of each chain; a power of two of them
  int32_t num_parked_ = 0;
  uint64_t num_inserts_ = 0;
  uint64_t num_hides_ = 0;
};

}  // namespace ballast
