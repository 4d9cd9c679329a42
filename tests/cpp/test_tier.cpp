#include <stdexcept>

#include "base/check.h"
#include "check.h"
#include "kv/tier.h"

using ballast::BlockId;
using ballast::kNoSalt;
using ballast::kNullBlock;
using ballast::PrefixMatch;
using ballast::Salt;
using ballast::Tier;

namespace {

using Table = std::vector<BlockId>;
using Tokens = std::vector<int32_t>;
using Salts = std::vector<Salt>;

Table match(const Tier& tier, const Tokens& tokens, const Salt& salt = kNoSalt) {
  PrefixMatch found;
  tier.match(tokens, salt, found);
  return found.blocks;
}

// Sends as many full blocks of two tokens as there is room for; returns their number.
int extend(Tier& tier, Table& table, const Tokens& tokens, const Salt& salt = kNoSalt) {
  int num_sent = 0;
  bool is_sent = false;
  while (table.size() < tokens.size() / 2 && tier.extend(table, tokens, salt, is_sent)) num_sent += is_sent;
  return num_sent;
}

void check_owned(const Tier& tier, std::initializer_list<const Table*> tables) {
  std::vector<int32_t> owners(static_cast<size_t>(tier.num_blocks()) + 1, 0);
  for (const Table* table : tables) {
    for (const BlockId block : *table) ++owners[index_of(block)];
  }
  tier.check(owners);
}

}  // namespace

TEST(a_block_is_known_when_it_is_sent_and_stored_when_it_arrives) {
  Tier tier({4, 4}, 2);
  Table table;
  EXPECT_EQ(extend(tier, table, {1, 2, 3, 4}), 2);
  EXPECT(match(tier, {1, 2, 3, 4, 5}) == table);
  EXPECT(!tier.is_stored(table[0]) && !tier.is_stored(table[1]));
  tier.arrive(true);
  EXPECT(tier.is_stored(table[0]) && !tier.is_stored(table[1]));
  tier.arrive(true);
  EXPECT(tier.is_stored(table[1]));
  check_owned(tier, {&table});
}

TEST(the_same_content_is_sent_once) {
  Tier tier({4, 4}, 2);
  Table table, other;
  EXPECT_EQ(extend(tier, table, {1, 2, 3, 4}), 2);
  EXPECT_EQ(extend(tier, other, {1, 2, 5, 6}), 1);
  EXPECT(other[0] == table[0] && other[1] != table[1]);
  check_owned(tier, {&table, &other});
}

TEST(pending_stores_are_limited) {
  Tier tier({4, 1}, 2);
  Table table;
  EXPECT_EQ(extend(tier, table, {1, 2, 3, 4}), 1);
  tier.arrive(true);
  EXPECT_EQ(extend(tier, table, {1, 2, 3, 4}), 1);
  EXPECT_EQ(tier.num_storing(), 1);
}

TEST(a_block_evicted_while_pending_does_not_complete_its_replacement) {
  Tier tier({1, 4}, 2);
  Table table, other;
  EXPECT_EQ(extend(tier, table, {1, 2}), 1);
  tier.release(table);
  EXPECT_EQ(extend(tier, other, {3, 4}), 1);
  tier.arrive(true);
  EXPECT(!tier.is_stored(other[0]));
  tier.arrive(true);
  EXPECT(tier.is_stored(other[0]));
  check_owned(tier, {&other});
}

TEST(after_a_failed_store_nothing_is_sent_and_stored_blocks_are_still_used) {
  Tier tier({4, 4}, 2);
  Table table, other;
  extend(tier, table, {1, 2, 3, 4});
  tier.arrive(true);
  tier.arrive(false);
  EXPECT(match(tier, {1, 2, 3, 4, 5}) == Table{table[0]});
  EXPECT_EQ(extend(tier, other, {1, 2, 7, 8}), 0);
  EXPECT(other == Table{table[0]});
  check_owned(tier, {&table, &other});
}

TEST(successors_of_a_hidden_block_are_not_used) {
  Tier tier({6, 6}, 2);
  Table table, again;
  extend(tier, table, {1, 2, 3, 4, 5, 6});
  for (int i = 0; i < 3; ++i) tier.arrive(true);
  tier.hide(table[1]);
  EXPECT(match(tier, {1, 2, 3, 4, 5, 6, 7}) == Table{table[0]});
  tier.release_from(table, 1);
  EXPECT(table.size() == 1);
  EXPECT_EQ(extend(tier, again, {1, 2, 3, 4}), 1);
  check_owned(tier, {&table, &again});
}

TEST(successors_of_a_hidden_block_take_no_space) {
  Tier tier({4, 4}, 2);
  Table table, held, other;
  extend(tier, table, {1, 2, 3, 4, 5, 6, 7, 8});
  for (int i = 0; i < 3; ++i) tier.arrive(true);
  extend(tier, held, {1, 2, 3, 4});
  tier.release(table);
  tier.hide(held[1]);
  EXPECT_EQ(tier.num_stored(), 1);
  EXPECT_EQ(tier.num_known(), 2);
  tier.arrive(true);  // the last block, whose store was still pending
  EXPECT_EQ(tier.num_stored(), 1);
  check_owned(tier, {&held});
  tier.release(held);
  EXPECT_EQ(tier.num_known(), 1);
  EXPECT_EQ(extend(tier, other, {1, 2, 3, 4, 5, 6, 7, 9}), 3);  // into free space, nothing is evicted
  check_owned(tier, {&other});
}

TEST(an_older_match_finds_the_replacement_of_a_hidden_block) {
  Tier tier({6, 6}, 2);
  Table table, again;
  const Tokens tokens{1, 2, 3, 4, 5, 6, 7};
  extend(tier, table, tokens);
  PrefixMatch older;
  tier.match(tokens, kNoSalt, older);
  EXPECT(older.blocks == table);
  tier.hide(table[1]);
  extend(tier, again, tokens);
  EXPECT(again.size() == 3 && again[0] == table[0] && again[1] != table[1]);
  tier.match(tokens, kNoSalt, older);
  EXPECT(older.blocks == again);
  check_owned(tier, {&table, &again});
}

TEST(a_table_releases_successors_of_a_hidden_block) {
  Tier tier({6, 6}, 2);
  Table table, other;
  uint64_t num_hides = 0;
  extend(tier, table, {1, 2, 3, 4, 5, 6});
  extend(tier, other, {1, 2, 3, 4, 5, 6});
  tier.hide(other[1]);
  tier.release_hidden(table, num_hides);
  EXPECT(table == Table{other[0]});
  tier.release_hidden(other, num_hides);
  EXPECT_EQ(other.size(), 3u);  // no block was hidden in the meantime
  check_owned(tier, {&table, &other});
}

TEST(a_restored_tier_is_used_and_evicts_in_the_order_of_its_list) {
  Tier tier({4, 4}, 2);
  const Table blocks{BlockId{3}, BlockId{4}, BlockId{1}};
  tier.restore(blocks, {BlockId{1}, BlockId{1}, kNullBlock}, {5, 6, 3, 4, 1, 2}, Salts(3));
  EXPECT(match(tier, {1, 2, 3, 4, 9}) == (Table{BlockId{1}, BlockId{4}}));
  EXPECT(match(tier, {1, 2, 5, 6, 9}) == (Table{BlockId{1}, BlockId{3}}));
  EXPECT(tier.is_stored(BlockId{3}) && !tier.is_stored(BlockId{2}));
  Table table;
  EXPECT_EQ(extend(tier, table, {7, 8, 9, 9}), 2);
  EXPECT(table == (Table{BlockId{2}, BlockId{3}}));
  EXPECT(match(tier, {1, 2, 5, 6, 9}) == Table{BlockId{1}});
  check_owned(tier, {&table});
}

TEST(invalid_blocks_to_restore_are_rejected) {
  const auto refuses = [](const Table& blocks, const Table& parents, const Tokens& tokens,
                          const Salts& salts) {
    Tier tier({2, 2}, 2);
    EXPECT_THROWS(tier.restore(blocks, parents, tokens, salts), std::invalid_argument);
  };
  refuses({BlockId{3}}, {kNullBlock}, {1, 2}, Salts(1));
  refuses({BlockId{1}}, {BlockId{2}}, {1, 2}, Salts(1));
  refuses({BlockId{1}}, {kNullBlock}, {1}, Salts(1));
  refuses({BlockId{1}}, {kNullBlock}, {1, 2}, Salts(2));
  refuses({BlockId{1}, BlockId{1}}, {kNullBlock, kNullBlock}, {1, 2, 3, 4}, Salts(2));
  refuses({BlockId{1}, BlockId{2}}, {kNullBlock, BlockId{1}}, {1, 2, 3, 4}, Salts(2));
  refuses({BlockId{2}, BlockId{1}}, {BlockId{1}, kNullBlock}, {3, 4, 1, 2}, {kNoSalt, {1, 1}});
}

TEST(a_tier_separates_and_restores_salts) {
  const Salt one{1, 2};
  Tier tier({4, 4}, 2);
  Table plain, salted;
  EXPECT_EQ(extend(tier, plain, {1, 2}), 1);
  EXPECT_EQ(extend(tier, salted, {1, 2}, one), 1);
  EXPECT(match(tier, {1, 2, 3}) == plain && match(tier, {1, 2, 3}, one) == salted);
  EXPECT(plain != salted && match(tier, {1, 2, 3}, {1, 3}).empty());
  Tier next({4, 4}, 2);
  next.restore({BlockId{2}, BlockId{1}}, {kNullBlock, kNullBlock}, {1, 2, 1, 2}, {one, kNoSalt});
  EXPECT(match(next, {1, 2, 3}) == Table{BlockId{1}} && match(next, {1, 2, 3}, one) == Table{BlockId{2}});
  EXPECT(match(next, {1, 2, 3}, {1, 3}).empty());
}

TEST(a_tier_notes_and_restores_which_blocks_have_windows) {
  Tier tier({4, 4}, 2);
  Table table;
  EXPECT_EQ(extend(tier, table, {1, 2, 3, 4}), 2);
  tier.note_window(table[1], true);
  EXPECT(!tier.has_window(table[0]) && tier.has_window(table[1]));
  Tier next({4, 4}, 2);
  next.restore({BlockId{2}, BlockId{1}}, {BlockId{1}, kNullBlock}, {3, 4, 1, 2}, Salts(2), {true, false});
  EXPECT(next.has_window(BlockId{2}) && !next.has_window(BlockId{1}));
  EXPECT_THROWS(Tier({4, 4}, 2).restore({BlockId{1}}, {kNullBlock}, {1, 2}, Salts(1), {true, true}),
                std::invalid_argument);
}
