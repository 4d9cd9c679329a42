#include "base/check.h"
#include "check.h"
#include "kv/block_pool.h"

using ballast::BlockId;
using ballast::BlockPool;
using ballast::InvariantError;

TEST(every_block_but_the_null_block_is_handed_out_once) {
  BlockPool pool(3);
  EXPECT_EQ(pool.num_blocks(), 3);
  std::vector<bool> seen(4, false);
  while (pool.num_free() > 0) {
    const size_t id = index_of(pool.allocate());
    EXPECT(id >= 1 && id <= 3);
    EXPECT(!seen[id]);
    seen[id] = true;
    pool.check();
  }
  EXPECT_THROWS(pool.allocate(), InvariantError);
}

TEST(a_block_is_unreferenced_when_its_last_holder_releases_it) {
  BlockPool pool(1);
  const BlockId block = pool.allocate();
  pool.retain(block);
  EXPECT_EQ(pool.refs(block), 2);
  EXPECT_EQ(pool.release(block), 1);
  EXPECT_EQ(pool.release(block), 0);
  EXPECT(!pool.is_free(block));
  EXPECT_EQ(pool.num_free(), 0);
  pool.free(block);
  EXPECT(pool.is_free(block));
  EXPECT_EQ(pool.num_free(), 1);
  pool.check();
}

TEST(an_unreferenced_block_can_be_held_again) {
  BlockPool pool(1);
  const BlockId block = pool.allocate();
  pool.release(block);
  pool.retain(block);
  EXPECT_EQ(pool.refs(block), 1);
}

TEST(misuse_is_detected) {
  BlockPool pool(2);
  EXPECT_THROWS(pool.retain(BlockId{1}), InvariantError);
  EXPECT_THROWS(pool.release(BlockId{1}), InvariantError);
  EXPECT_THROWS(pool.free(BlockId{1}), InvariantError);
  const BlockId held = pool.allocate();
  EXPECT_THROWS(pool.free(held), InvariantError);
  pool.check();
}

TEST(the_block_freed_last_is_handed_out_first) {
  BlockPool pool(3);
  const BlockId first = pool.allocate();
  pool.allocate();
  pool.release(first);
  pool.free(first);
  EXPECT(pool.allocate() == first);
}
