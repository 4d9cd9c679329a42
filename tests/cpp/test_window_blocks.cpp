#include "base/check.h"
#include "check.h"
#include "kv/block_manager.h"
#include "kv/window_blocks.h"

using ballast::BlockId;
using ballast::BlockManager;
using ballast::kNullBlock;
using ballast::PrefixMatch;
using ballast::WindowBlocks;

namespace {

constexpr int32_t kBlockTokens = 4;

BlockId id(int32_t number) { return BlockId{number}; }

std::vector<BlockId> ids(int32_t end) {
  std::vector<BlockId> all;
  for (int32_t number = 1; number <= end; ++number) all.push_back(id(number));
  return all;
}

}  // namespace

TEST(a_token_sees_its_window) {
  const WindowBlocks windows(9, kBlockTokens, {6, 9});
  EXPECT(windows.first_seen(0) == 0);
  EXPECT(windows.first_seen(8) == 0);   // sees 3…8
  EXPECT(windows.first_seen(9) == 1);   // sees 4…9
  EXPECT(windows.first_seen(16) == 2);  // sees 11…16
  EXPECT(WindowBlocks(9, kBlockTokens, {1, 9}).first_seen(7) == 1);
  EXPECT(WindowBlocks(9, kBlockTokens, {}).first_seen(16) == 0);
}

TEST(a_request_begins_where_its_window_is_cached) {
  WindowBlocks windows(5, kBlockTokens, {6, 5});
  for (const BlockId block : ids(5)) windows.need(block);
  EXPECT(windows.num_usable(ids(5)) == 5);
  for (const BlockId block : ids(5)) windows.release(block, false);
  windows.drop(id(5));
  EXPECT(windows.num_usable(ids(5)) == 4);
  windows.drop(id(3));  // visible after 3 or 4 blocks
  EXPECT(windows.num_usable(ids(5)) == 2);
  windows.drop(id(1));
  EXPECT(windows.num_usable(ids(5)) == 0);
  EXPECT(windows.num_usable({}) == 0);
  EXPECT(WindowBlocks(5, kBlockTokens, {}).num_usable(ids(5)) == 5);
}

TEST(borders_are_evicted_last_and_needed_blocks_never) {
  WindowBlocks windows(9, kBlockTokens, {6, 3});
  for (const BlockId block : ids(3)) windows.need(block);
  windows.need(id(3));
  windows.release(id(1), true);
  windows.release(id(2), false);
  windows.release(id(3), false);
  EXPECT(windows.num_needed() == 1 && windows.num_cached() == 2);
  windows.need(id(4));
  EXPECT(windows.of(id(2)) == kNullBlock && windows.of(id(1)) != kNullBlock);
  windows.need(id(5));
  EXPECT(windows.of(id(1)) == kNullBlock);
  windows.check({0, 0, 0, 1, 1, 1, 0, 0, 0, 0});
  EXPECT_THROWS(windows.need(id(6)), ballast::InvariantError);
}

TEST(a_block_that_is_needed_again_stays_a_border) {
  WindowBlocks windows(9, kBlockTokens, {6, 2});
  windows.need(id(1));
  windows.release(id(1), true);
  windows.need(id(2));
  windows.release(id(2), false);
  windows.need(id(1));
  windows.release(id(1), false);
  windows.need(id(3));
  EXPECT(windows.of(id(1)) != kNullBlock && windows.of(id(2)) == kNullBlock);
  windows.check({0, 0, 0, 1, 0, 0, 0, 0, 0, 0});
}

TEST(borders_are_at_regular_distances) {
  const WindowBlocks windows(999, kBlockTokens, {6, 999});  // every 16 · 6 tokens, which is 24 blocks
  EXPECT(!windows.is_before_regular_border(21));
  EXPECT(windows.is_before_regular_border(22) && windows.is_before_regular_border(23));
  EXPECT(!windows.is_before_regular_border(24) && windows.is_before_regular_border(47));
  EXPECT(!windows.is_before_regular_border(998));
}

TEST(equal_blocks_keep_one_window_block) {
  for (const bool is_kept : {false, true}) {
    BlockManager blocks(4, 2, true, {3, 4});
    std::vector<BlockId> first{blocks.allocate()}, second{blocks.allocate()};
    blocks.windows().need(first[0]);
    blocks.publish(first, 0, {1, 2}, {});
    if (!is_kept) {
      blocks.windows().release(first[0], false);
      blocks.windows().drop(first[0]);
    }
    blocks.windows().need(second[0]);
    const BlockId written = blocks.windows().of(second[0]);
    const BlockId known = blocks.windows().of(first[0]);
    blocks.publish(second, 0, {1, 2}, {});
    EXPECT(second == first);
    EXPECT(blocks.windows().of(first[0]) == (is_kept ? known : written));
    EXPECT(blocks.windows().num_needed() == 1);
    blocks.windows().release(first[0], true);
    if (is_kept) blocks.windows().release(first[0], true);
    blocks.windows().check({0, 0, 0, 0, 0});
  }
}

TEST(an_unused_equal_block_moves_no_window_block) {
  BlockManager blocks(4, 2, true, {3, 4});
  std::vector<BlockId> first{blocks.allocate()}, second{blocks.allocate()};
  blocks.publish(first, 0, {1, 2}, {});
  blocks.publish(second, 0, {1, 2}, {});
  EXPECT(second == first && blocks.windows().of(first[0]) == kNullBlock);
  blocks.windows().check({0, 0, 0, 0, 0});
}

TEST(a_request_can_begin_where_the_cache_or_a_tier_has_what_it_sees) {
  const WindowBlocks windows(9, kBlockTokens, {6, 9});  // two blocks
  const auto usable = [&](std::vector<bool> are_there) {
    return windows.num_usable(are_there.size(), [&](size_t index) { return are_there[index]; });
  };
  EXPECT(usable({false, false, true, true}) == 4);
  EXPECT(usable({true, true, false, true}) == 2);
  EXPECT(usable({true, false, true}) == 1);
  EXPECT(usable({false, true, false}) == 0);
  const WindowBlocks none(9, kBlockTokens, {0, 0});
  EXPECT(none.num_usable(3, [](size_t) { return false; }) == 3);
}

TEST(evicting_a_block_evicts_its_window_block) {
  BlockManager blocks(1, 2, true, {3, 1});
  std::vector<BlockId> table{blocks.allocate()};
  blocks.windows().need(table[0]);
  blocks.publish(table, 0, {1, 2}, {});
  blocks.windows().release(table[0], true);
  blocks.release(table);
  PrefixMatch match;
  blocks.match({1, 2, 3}, {}, match);
  EXPECT(match.num_usable == 1 && blocks.windows().num_cached() == 1);
  blocks.allocate();
  EXPECT(blocks.windows().num_cached() == 0);
  blocks.check({0, 1});
}

TEST(the_pool_holds_what_all_requests_see_and_a_step_writes) {
  // 8 requests with 4 + 2 blocks each, and 64 blocks of a step; 2048 / 64 borders of 4 blocks.
  EXPECT(ballast::least_window_blocks({128, 2048, 32, 8, 2048, false}) == 112);
  EXPECT(ballast::ample_window_blocks({128, 2048, 32, 8, 2048, false}) == 240);
  EXPECT(ballast::ample_window_blocks({128, 200, 32, 8, 2048, false}) == 128);
  EXPECT(ballast::least_window_blocks({128, 100, 32, 8, 2048, false}) == 100);
  EXPECT(ballast::least_window_blocks({128, 2048, 32, 8, 2048, true}) == 176);
}
