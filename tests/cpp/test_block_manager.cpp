#include <algorithm>
#include <random>

#include "base/check.h"
#include "check.h"
#include "kv/block_manager.h"

using ballast::BlockId;
using ballast::BlockManager;
using ballast::kNoSalt;
using ballast::PrefixMatch;
using ballast::Salt;

namespace {

using Table = std::vector<BlockId>;
using Tokens = std::vector<int32_t>;

Table allocate(BlockManager& blocks, size_t count) {
  Table table;
  for (size_t i = 0; i < count; ++i) table.push_back(blocks.allocate());
  return table;
}

void publish(BlockManager& blocks, Table& table, const Tokens& tokens, const Salt& salt = kNoSalt) {
  for (size_t i = 0; i < table.size(); ++i) blocks.publish(table, i, tokens, salt);
}

Table match(const BlockManager& blocks, const Tokens& tokens, const Salt& salt = kNoSalt) {
  PrefixMatch found;
  blocks.match(tokens, salt, found);
  return found.blocks;
}

void check_owned(const BlockManager& blocks, std::initializer_list<const Table*> tables) {
  std::vector<int32_t> owners(static_cast<size_t>(blocks.num_available() + blocks.num_held()) + 1, 0);
  for (const Table* table : tables) {
    for (const BlockId block : *table) ++owners[index_of(block)];
  }
  blocks.check(owners);
}

}  // namespace

TEST(published_blocks_serve_a_prompt_that_begins_with_them) {
  BlockManager blocks(4, 2, true);
  Table table = allocate(blocks, 2);
  publish(blocks, table, {1, 2, 3, 4});
  EXPECT(match(blocks, {1, 2, 3, 4, 5}) == table);
  EXPECT(match(blocks, {1, 2, 9, 4, 5}) == Table{table[0]});
  EXPECT(match(blocks, {9, 2, 3, 4, 5}).empty());
  check_owned(blocks, {&table});
}

TEST(a_match_leaves_one_token_to_compute) {
  BlockManager blocks(4, 2, true);
  Table table = allocate(blocks, 2);
  publish(blocks, table, {1, 2, 3, 4});
  EXPECT(match(blocks, {1, 2, 3, 4}) == Table{table[0]});
  EXPECT(match(blocks, {1, 2}).empty());
  EXPECT(match(blocks, {1}).empty());
}

TEST(published_blocks_stay_cached_when_released_and_others_are_freed) {
  BlockManager blocks(4, 2, true);
  Table table = allocate(blocks, 3);
  const Table first_two{table[0], table[1]};
  for (size_t i = 0; i < 2; ++i) blocks.publish(table, i, {1, 2, 3, 4, 5}, kNoSalt);
  blocks.release(table);
  EXPECT(table.empty());
  EXPECT_EQ(blocks.num_cached(), 2);
  EXPECT_EQ(blocks.num_held(), 0);
  EXPECT_EQ(blocks.num_available(), 4);
  Table again = match(blocks, {1, 2, 3, 4, 5});
  EXPECT(again == first_two);
  blocks.hold(again);
  EXPECT_EQ(blocks.num_cached(), 0);
  EXPECT_EQ(blocks.num_held(), 2);
  check_owned(blocks, {&again});
}

TEST(known_content_is_stored_once) {
  BlockManager blocks(4, 2, true);
  Table first = allocate(blocks, 2), second = allocate(blocks, 2);
  publish(blocks, first, {1, 2, 3, 4});
  publish(blocks, second, {1, 2, 3, 4});
  EXPECT(first == second);
  EXPECT_EQ(blocks.num_held(), 2);
  EXPECT_EQ(blocks.num_available(), 2);
  check_owned(blocks, {&first, &second});
}

TEST(a_known_block_without_holders_is_reused) {
  BlockManager blocks(2, 1, true);
  Table first = allocate(blocks, 1);
  publish(blocks, first, {1});
  blocks.release(first);
  Table second = allocate(blocks, 1);
  publish(blocks, second, {1});
  EXPECT_EQ(blocks.num_cached(), 0);
  EXPECT_EQ(blocks.num_held(), 1);
  check_owned(blocks, {&second});
}

TEST(blocks_of_a_discarded_table_are_freed_and_not_reused) {
  BlockManager blocks(4, 2, true);
  Table table = allocate(blocks, 3);
  for (size_t i = 0; i < 2; ++i) blocks.publish(table, i, {1, 2, 3, 4, 5}, kNoSalt);
  blocks.discard(table);
  EXPECT(table.empty());
  EXPECT_EQ(blocks.num_cached(), 0);
  EXPECT_EQ(blocks.num_held(), 0);
  EXPECT(match(blocks, {1, 2, 3, 4, 5}).empty());
  check_owned(blocks, {});
}

TEST(shared_blocks_of_a_discarded_table_stay_with_their_holders_only) {
  BlockManager blocks(6, 1, true);
  Table failed = allocate(blocks, 3);
  publish(blocks, failed, {1, 2, 3});
  Table other{failed[0], failed[1]};
  blocks.hold(other);
  other.push_back(blocks.allocate());
  blocks.publish(other, 2, {1, 2, 4}, kNoSalt);
  const Table kept = other;
  blocks.discard(failed);
  EXPECT(other == kept);
  EXPECT_EQ(blocks.num_held(), 3);
  EXPECT(match(blocks, {1, 2, 3, 9}).empty());
  EXPECT(match(blocks, {1, 2, 4, 9}).empty());
  check_owned(blocks, {&other});

  other.push_back(blocks.allocate());  // it continues without sharing its blocks
  blocks.publish(other, 3, {1, 2, 4, 5}, kNoSalt);
  Table again = allocate(blocks, 2);
  publish(blocks, again, {1, 2});
  EXPECT(match(blocks, {1, 2, 4, 5, 9}) == again);
  check_owned(blocks, {&other, &again});
  blocks.discard(other);  // already hidden
  check_owned(blocks, {&again});
  EXPECT_EQ(blocks.num_held(), 2);
  EXPECT_EQ(blocks.num_cached(), 0);
}

TEST(successors_of_a_discarded_table_are_freed) {
  BlockManager blocks(4, 1, true);
  Table table = allocate(blocks, 2);
  publish(blocks, table, {1, 2});
  Table longer = table;
  blocks.hold(longer);
  longer.push_back(blocks.allocate());
  blocks.publish(longer, 2, {1, 2, 3}, kNoSalt);
  blocks.release(longer);
  EXPECT_EQ(blocks.num_cached(), 1);
  blocks.discard(table);
  EXPECT_EQ(blocks.num_cached(), 0);
  EXPECT_EQ(blocks.num_free(), 4);
  check_owned(blocks, {});
}

TEST(a_stored_match_equals_a_new_one) {
  BlockManager blocks(12, 1, true);
  const Tokens tokens{1, 1, 1, 1, 1, 1, 1, 1, 1};
  PrefixMatch remembered;
  std::mt19937 random(7);
  std::vector<Table> tables(4);
  size_t longest = 0;
  for (int step = 0; step < 20'000; ++step) {
    Table& table = tables[random() % tables.size()];
    if (table.empty()) {
      Tokens own = tokens;
      for (int32_t& token : own) token += random() % 8 == 0;
      PrefixMatch known;
      blocks.match(own, kNoSalt, known);
      blocks.hold(known.blocks);
      table = known.blocks;
      while (table.size() < own.size() && blocks.num_available() > 0 && random() % 6 != 0) {
        table.push_back(blocks.allocate());
        blocks.publish(table, table.size() - 1, own, kNoSalt);
      }
    } else if (random() % 8 == 0) {
      blocks.discard(table);
    } else {
      blocks.release(table);
    }
    if (random() % 3 == 0) continue;  // several changes between two checks
    blocks.match(tokens, kNoSalt, remembered);
    const Table fresh = match(blocks, tokens);
    EXPECT(remembered.blocks == fresh);
    EXPECT_EQ(remembered.stamps.size(), fresh.size());
    int32_t num_unheld = 0;
    for (const BlockId block : fresh) {
      bool is_held = false;
      for (const Table& each : tables) is_held |= std::find(each.begin(), each.end(), block) != each.end();
      num_unheld += !is_held;
    }
    EXPECT_EQ(blocks.num_unheld(remembered), num_unheld);
    longest = std::max(longest, fresh.size());
  }
  EXPECT_EQ(longest, tokens.size() - 1);
  check_owned(blocks, {&tables[0], &tables[1], &tables[2], &tables[3]});
}

TEST(children_are_evicted_before_their_parents) {
  BlockManager blocks(3, 1, true);
  Table table = allocate(blocks, 3);
  const Table chain = table;
  publish(blocks, table, {1, 2, 3});
  blocks.release(table);
  EXPECT(blocks.allocate() == chain[2]);
  EXPECT(match(blocks, {1, 2, 3, 4}) == (Table{chain[0], chain[1]}));
  EXPECT(blocks.allocate() == chain[1]);
  EXPECT(match(blocks, {1, 2, 3, 4}) == Table{chain[0]});
}

TEST(a_parent_shared_by_two_chains_outlives_both) {
  BlockManager blocks(3, 1, true);
  Table left = allocate(blocks, 2);
  publish(blocks, left, {1, 2});
  Table right{left[0]};
  blocks.hold(right);
  right.push_back(blocks.allocate());
  blocks.publish(right, 1, {1, 3}, kNoSalt);
  const BlockId root = left[0], left_leaf = left[1], right_leaf = right[1];
  blocks.release(left);
  blocks.release(right);
  check_owned(blocks, {});
  EXPECT(blocks.allocate() == left_leaf);
  EXPECT(blocks.allocate() == right_leaf);
  EXPECT(blocks.allocate() == root);
}

TEST(free_blocks_are_used_before_cached_ones) {
  BlockManager blocks(2, 1, true);
  Table table = allocate(blocks, 1);
  publish(blocks, table, {1});
  blocks.release(table);
  blocks.allocate();
  EXPECT_EQ(blocks.num_cached(), 1);
  blocks.allocate();
  EXPECT_EQ(blocks.num_cached(), 0);
}

TEST(without_a_prefix_cache_nothing_is_remembered) {
  BlockManager blocks(2, 1, false);
  Table table = allocate(blocks, 2);
  publish(blocks, table, {1, 2});
  EXPECT(match(blocks, {1, 2, 3}).empty());
  blocks.release(table);
  EXPECT_EQ(blocks.num_cached(), 0);
  EXPECT_EQ(blocks.num_available(), 2);
}

TEST(a_wrong_number_of_owners_is_detected) {
  BlockManager blocks(1, 1, true);
  Table table = allocate(blocks, 1);
  EXPECT_THROWS(check_owned(blocks, {}), ballast::InvariantError);
  EXPECT_THROWS(check_owned(blocks, {&table, &table}), ballast::InvariantError);
}
