#include "check.h"
#include "sched/fetching.h"

using namespace ballast;

namespace {

using Found = std::vector<int32_t>;

// Blocks of 4 tokens; a token takes 1 s, in steps of 16 that nothing delays.
SchedulerConfig one_second_a_token() {
  SchedulerConfig config{64, 4, 4, 16, 16, 8, true};
  config.decode_costs = CostCurve("decode_costs", {{1, 1.0}, {16, 16.0}});
  return config;
}

}  // namespace

TEST(what_a_tier_brings_sooner_than_it_is_computed_is_fetched) {
  const SchedulerConfig config = one_second_a_token();
  EXPECT_EQ(num_worth_fetching(config, {{3.9}}, {0, 0, 0}, 13, 0), 3u);
  EXPECT_EQ(num_worth_fetching(config, {{4.1}}, {0, 0, 0}, 13, 0), 0u);
  EXPECT_EQ(num_worth_fetching(config, {{1.0}}, {}, 13, 0), 0u);
}

TEST(where_nobody_knows_a_speed_everything_is_fetched) {
  EXPECT_EQ(num_worth_fetching(one_second_a_token(), {{0.0}}, {0, 0, 0}, 13, 0), 3u);
  EXPECT_EQ(num_worth_fetching({64, 4, 4, 16, 16, 8, true}, {{100.0}}, {0, 0, 0}, 13, 0), 3u);
}

TEST(what_a_tier_brings_before_delays_a_fetch) {
  const SchedulerConfig config = one_second_a_token();
  EXPECT_EQ(num_worth_fetching(config, {{2.0, 3}}, {0, 0, 0}, 13, 0), 3u);
  EXPECT_EQ(num_worth_fetching(config, {{2.0, 4}}, {0, 0, 0}, 13, 0), 0u);
}

TEST(each_tier_is_looked_at_by_itself) {
  const SchedulerConfig config = one_second_a_token();
  const Found found{0, 0, 1, 1};
  EXPECT_EQ(num_worth_fetching(config, {{0.1}, {1.0}}, found, 17, 0), 4u);
  EXPECT_EQ(num_worth_fetching(config, {{0.1}, {9.0}}, found, 17, 0), 2u);
  // They bring theirs at the same time: while one takes long, so may the other.
  EXPECT_EQ(num_worth_fetching(config, {{6.0}, {6.0}}, found, 17, 0), 4u);
  EXPECT_EQ(num_worth_fetching(config, {{9.0}, {9.0}}, found, 17, 0), 0u);
}
