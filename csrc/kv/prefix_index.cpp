#include "kv/prefix_index.h"

#include <algorithm>

#include "base/check.h"

namespace ballast {

PrefixIndex::PrefixIndex(int32_t num_blocks, int32_t block_tokens)
    : block_tokens_(block_tokens),
      nodes_(static_cast<size_t>(num_blocks) + 1),
      tokens_(nodes_.size() * static_cast<size_t>(block_tokens)) {
  size_t num_buckets = 1;
  while (num_buckets < nodes_.size()) num_buckets *= 2;
  buckets_.resize(num_buckets, kNullBlock);
}

uint32_t PrefixIndex::bucket_of(BlockId parent, const int32_t* tokens, const Salt& salt) const {
  uint64_t hash = (0x9e3779b97f4a7c15u * (index_of(parent) + 1)) ^ salt.low;
  for (int32_t i = 0; i < block_tokens_; ++i) {
    hash = (hash ^ static_cast<uint32_t>(tokens[i])) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;  // high bits come down: the bucket is taken from the low ones
  }
  return static_cast<uint32_t>(hash & (buckets_.size() - 1));
}

bool PrefixIndex::matches(BlockId block, BlockId parent, const int32_t* tokens, const Salt& salt) const {
  const int32_t* own = &tokens_[index_of(block) * static_cast<size_t>(block_tokens_)];
  return contains(block) && node(block).parent == parent && node(block).salt == salt &&
         std::equal(tokens, tokens + block_tokens_, own);
}

BlockId PrefixIndex::find(BlockId parent, const int32_t* tokens, const Salt& salt) const {
  BlockId block = buckets_[bucket_of(parent, tokens, salt)];
  while (block != kNullBlock && !matches(block, parent, tokens, salt)) block = node(block).chain_next;
  return block;
}

void PrefixIndex::insert(BlockId block, BlockId parent, const int32_t* tokens, const Salt& salt) {
  BALLAST_CHECK(block != kNullBlock && !contains(block));
  BALLAST_CHECK(parent == kNullBlock || (contains(parent) && node(parent).salt == salt));
  Node& added = node(block);
  added.present = true;
  added.stamp = ++num_inserts_;
  added.parent = parent;
  added.salt = salt;
  added.sibling_prev = kNullBlock;
  added.sibling_next = node(parent).first_child;
  if (added.sibling_next != kNullBlock) node(added.sibling_next).sibling_prev = block;
  node(parent).first_child = block;
  added.hidden = node(parent).hidden;
  if (!added.hidden) {
    added.bucket = bucket_of(parent, tokens, salt);
    added.chain_prev = kNullBlock;
    added.chain_next = buckets_[added.bucket];
    if (added.chain_next != kNullBlock) node(added.chain_next).chain_prev = block;
    buckets_[added.bucket] = block;
  }
  std::copy(tokens, tokens + block_tokens_, &tokens_[index_of(block) * static_cast<size_t>(block_tokens_)]);
}

void PrefixIndex::park(BlockId block) {
  Node& parked = node(block);
  BALLAST_CHECK(parked.present && !parked.parked);
  Node& ring = node(kNullBlock);
  parked.parked = true;
  parked.line_prev = ring.line_prev;
  parked.line_next = kNullBlock;
  node(ring.line_prev).line_next = block;
  ring.line_prev = block;
  ++num_parked_;
}

void PrefixIndex::unpark(BlockId block) {
  Node& held = node(block);
  BALLAST_CHECK(held.parked);
  node(held.line_prev).line_next = held.line_next;
  node(held.line_next).line_prev = held.line_prev;
  held.parked = false;
  --num_parked_;
}

BlockId PrefixIndex::evict() {
  BALLAST_CHECK(num_parked_ > 0);
  const BlockId block = node(kNullBlock).line_next;
  unpark(block);
  erase(block);
  return block;
}

void PrefixIndex::erase(BlockId block) {
  Node& erased = node(block);
  BALLAST_CHECK(erased.present && !erased.parked && erased.first_child == kNullBlock);
  if (!erased.hidden) leave_chain(erased);
  leave_parent(erased);
  erased.present = erased.hidden = false;
}

std::vector<BlockId> PrefixIndex::hide(BlockId block) {
  BALLAST_CHECK(node(block).present);
  std::vector<BlockId> hidden;
  if (!node(block).hidden) hidden.push_back(block);
  for (size_t i = 0; i < hidden.size(); ++i) {
    Node& each = node(hidden[i]);
    leave_chain(each);
    each.hidden = true;
    for (BlockId child = each.first_child; child != kNullBlock; child = node(child).sibling_next) {
      if (!node(child).hidden) hidden.push_back(child);
    }
  }
  num_hides_ += !hidden.empty();
  return hidden;
}

void PrefixIndex::leave_chain(const Node& left) {
  if (left.chain_prev == kNullBlock)
    buckets_[left.bucket] = left.chain_next;
  else
    node(left.chain_prev).chain_next = left.chain_next;
  if (left.chain_next != kNullBlock) node(left.chain_next).chain_prev = left.chain_prev;
}

void PrefixIndex::leave_parent(const Node& left) {
  if (left.sibling_prev == kNullBlock)
    node(left.parent).first_child = left.sibling_next;
  else
    node(left.sibling_prev).sibling_next = left.sibling_next;
  if (left.sibling_next != kNullBlock) node(left.sibling_next).sibling_prev = left.sibling_prev;
}

void PrefixIndex::check() const {
  std::vector<int32_t> children(nodes_.size(), 0);
  for (size_t id = 1; id < nodes_.size(); ++id) {
    const Node& each = nodes_[id];
    BALLAST_CHECK(each.present || (!each.parked && !each.hidden && each.first_child == kNullBlock));
    if (!each.present) continue;
    BALLAST_CHECK(each.parent == kNullBlock || contains(each.parent));
    const BlockId found = find(each.parent, &tokens_[id * static_cast<size_t>(block_tokens_)], each.salt);
    BALLAST_CHECK((found == BlockId{static_cast<int32_t>(id)}) != each.hidden);
    BALLAST_CHECK(!node(each.parent).parked || each.parked);
    BALLAST_CHECK(!node(each.parent).hidden || each.hidden);
    ++children[index_of(each.parent)];
  }
  for (size_t id = 0; id < nodes_.size(); ++id) {
    int32_t num_listed = 0;
    for (BlockId child = nodes_[id].first_child; child != kNullBlock; child = node(child).sibling_next) {
      BALLAST_CHECK(node(child).present && index_of(node(child).parent) == id);
      BALLAST_CHECK(++num_listed <= children[id]);
    }
    BALLAST_CHECK(num_listed == children[id]);
  }

  int32_t num_listed = 0;
  for (BlockId block = node(kNullBlock).line_next; block != kNullBlock; block = node(block).line_next) {
    BALLAST_CHECK(node(block).parked);
    BALLAST_CHECK(node(node(block).line_next).line_prev == block);
    // Every child was counted down before its parent came: children are evicted first.
    BALLAST_CHECK(children[index_of(block)] == 0);
    --children[index_of(node(block).parent)];
    BALLAST_CHECK(++num_listed <= num_parked_);
  }
  BALLAST_CHECK(num_listed == num_parked_);
}

}  // namespace ballast
