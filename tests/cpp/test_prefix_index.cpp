#include "base/check.h"
#include "check.h"
#include "kv/prefix_index.h"

using ballast::BlockId;
using ballast::InvariantError;
using ballast::kNoSalt;
using ballast::kNullBlock;
using ballast::PrefixIndex;
using ballast::Salt;

namespace {

using Tokens = std::vector<int32_t>;

BlockId find(const PrefixIndex& index, BlockId parent, const Tokens& tokens, const Salt& salt = kNoSalt) {
  return index.find(parent, tokens.data(), salt);
}

void insert(PrefixIndex& index, int32_t block, BlockId parent, const Tokens& tokens,
            const Salt& salt = kNoSalt) {
  index.insert(BlockId{block}, parent, tokens.data(), salt);
}

}  // namespace

TEST(a_block_is_found_by_its_tokens_and_its_parent) {
  PrefixIndex index(4, 2);
  insert(index, 1, kNullBlock, {7, 8});
  insert(index, 2, BlockId{1}, {7, 8});
  EXPECT(find(index, kNullBlock, {7, 8}) == BlockId{1});
  EXPECT(find(index, BlockId{1}, {7, 8}) == BlockId{2});
  EXPECT(find(index, BlockId{2}, {7, 8}) == kNullBlock);
  EXPECT(find(index, kNullBlock, {8, 7}) == kNullBlock);
  index.check();
}

TEST(equal_tokens_with_different_salts_are_different_blocks) {
  PrefixIndex index(4, 2);
  const Salt one{1, 2}, other{1, 3};
  insert(index, 1, kNullBlock, {7, 8});
  insert(index, 2, kNullBlock, {7, 8}, one);
  EXPECT(find(index, kNullBlock, {7, 8}) == BlockId{1});
  EXPECT(find(index, kNullBlock, {7, 8}, one) == BlockId{2});
  EXPECT(find(index, kNullBlock, {7, 8}, other) == kNullBlock);
  insert(index, 3, BlockId{2}, {9, 9}, one);
  EXPECT(find(index, BlockId{2}, {9, 9}, one) == BlockId{3});
  EXPECT(find(index, BlockId{2}, {9, 9}) == kNullBlock);
  EXPECT_THROWS(insert(index, 4, BlockId{1}, {9, 9}, one), InvariantError);
  index.check();
}

// 500 nodes in 512 buckets: hashes alone would confuse many of them.
TEST(nodes_in_the_same_bucket_are_distinguished) {
  PrefixIndex index(500, 1);
  for (int32_t id = 1; id <= 500; ++id) insert(index, id, kNullBlock, {id * 7919});
  for (int32_t id = 1; id <= 500; ++id) EXPECT(find(index, kNullBlock, {id * 7919}) == BlockId{id});
  for (int32_t token = 0; token < 5000; ++token) {
    const bool known = token % 7919 == 0 && token > 0;
    EXPECT_EQ(find(index, kNullBlock, {token}) != kNullBlock, known);
  }
  index.check();
}

TEST(equal_tokens_under_another_parent_are_another_block) {
  PrefixIndex index(4, 1);
  insert(index, 1, kNullBlock, {1});
  insert(index, 2, kNullBlock, {2});
  insert(index, 3, BlockId{1}, {5});
  EXPECT(find(index, BlockId{2}, {5}) == kNullBlock);
  insert(index, 4, BlockId{2}, {5});
  EXPECT(find(index, BlockId{1}, {5}) == BlockId{3});
  EXPECT(find(index, BlockId{2}, {5}) == BlockId{4});
  index.check();
}

TEST(the_block_parked_longest_ago_is_evicted_first) {
  PrefixIndex index(3, 1);
  for (int32_t id = 1; id <= 3; ++id) {
    insert(index, id, kNullBlock, {id});
    index.park(BlockId{id});
  }
  index.unpark(BlockId{1});  // used again, then released: last in the queue
  index.park(BlockId{1});
  EXPECT(index.evict() == BlockId{2});
  index.check();
  EXPECT(index.evict() == BlockId{3});
  EXPECT(index.evict() == BlockId{1});
  EXPECT_EQ(index.num_parked(), 0);
  EXPECT_THROWS(index.evict(), InvariantError);
  index.check();
}

TEST(an_evicted_block_is_forgotten_and_its_id_can_be_reused) {
  PrefixIndex index(2, 1);
  insert(index, 1, kNullBlock, {1});
  insert(index, 2, BlockId{1}, {2});
  index.park(BlockId{2});
  index.park(BlockId{1});
  EXPECT(index.evict() == BlockId{2});
  EXPECT(index.evict() == BlockId{1});
  EXPECT(!index.contains(BlockId{1}));
  insert(index, 1, kNullBlock, {9});
  EXPECT(find(index, BlockId{1}, {2}) == kNullBlock);
  EXPECT(find(index, kNullBlock, {1}) == kNullBlock);
  index.check();
}

TEST(evicting_a_parent_before_its_child_is_detected) {
  PrefixIndex index(2, 1);
  insert(index, 1, kNullBlock, {1});
  insert(index, 2, BlockId{1}, {2});
  index.park(BlockId{1});  // in the wrong order
  EXPECT_THROWS(index.check(), InvariantError);
  index.park(BlockId{2});
  EXPECT_THROWS(index.check(), InvariantError);
  EXPECT_THROWS(index.evict(), InvariantError);
}

TEST(a_child_needs_a_parent_that_is_known) {
  PrefixIndex index(2, 1);
  EXPECT_THROWS(insert(index, 2, BlockId{1}, {2}), InvariantError);
}

TEST(a_hidden_block_is_not_found_and_its_content_can_be_inserted_again) {
  PrefixIndex index(4, 1);
  insert(index, 1, kNullBlock, {1});
  insert(index, 2, BlockId{1}, {2});
  EXPECT(index.hide(BlockId{1}) == (std::vector<BlockId>{BlockId{1}, BlockId{2}}));
  EXPECT(index.hide(BlockId{1}).empty());  // hiding it again changes nothing
  EXPECT_EQ(index.num_hides(), 1u);
  EXPECT(index.is_hidden(BlockId{1}) && index.contains(BlockId{1}));
  EXPECT(find(index, kNullBlock, {1}) == kNullBlock);
  insert(index, 4, BlockId{2}, {4});  // a holder of its parent continues
  EXPECT(index.is_hidden(BlockId{4}) && find(index, BlockId{2}, {4}) == kNullBlock);
  index.check();
  index.erase(BlockId{4});
  insert(index, 3, kNullBlock, {1});
  EXPECT(find(index, kNullBlock, {1}) == BlockId{3});
  EXPECT(find(index, BlockId{3}, {2}) == kNullBlock);
  index.check();
  index.park(BlockId{2});
  index.park(BlockId{1});
  EXPECT(index.evict() == BlockId{2});
  EXPECT(index.evict() == BlockId{1});
  insert(index, 1, kNullBlock, {7});
  EXPECT(find(index, kNullBlock, {7}) == BlockId{1});
  index.check();
}

TEST(an_erased_block_is_forgotten_immediately) {
  PrefixIndex index(2, 1);
  insert(index, 1, kNullBlock, {1});
  insert(index, 2, BlockId{1}, {2});
  EXPECT_THROWS(index.erase(BlockId{1}), InvariantError);  // its child would have no parent
  index.erase(BlockId{2});
  EXPECT(!index.contains(BlockId{2}));
  index.hide(BlockId{1});
  index.erase(BlockId{1});
  index.check();
  const uint64_t before = index.stamp(BlockId{1});
  insert(index, 1, kNullBlock, {1});
  EXPECT(index.stamp(BlockId{1}) != before);
  index.check();
}

TEST(removing_from_the_middle_of_a_chain_keeps_the_rest) {
  PrefixIndex index(64, 1);
  for (int32_t id = 1; id <= 64; ++id) insert(index, id, kNullBlock, {id});
  for (int32_t id = 2; id <= 64; id += 2) index.park(BlockId{id});
  while (index.num_parked() > 0) index.evict();
  for (int32_t id = 1; id <= 64; ++id) {
    EXPECT(find(index, kNullBlock, {id}) == (id % 2 == 1 ? BlockId{id} : kNullBlock));
  }
  index.check();
}
