#include <algorithm>

#include "check.h"
#include "sched/tiers/fetching.h"

using namespace ballast;

namespace {

using Found = std::vector<int32_t>;

// Blocks of 4 tokens; computing a token takes 1 s, in steps of at most 16.
StepPlanner one_second_per_token() {
  SchedulerConfig config{64, 4, 4, 16, 16, true};
  config.decode_costs = CostCurve("decode_costs", {{1, 1.0}, {16, 16.0}});
  return StepPlanner(config);
}

}  // namespace

TEST(blocks_are_fetched_if_that_is_faster_than_computing_them) {
  const StepPlanner planner = one_second_per_token();
  EXPECT_EQ(num_worth_fetching(planner, 4, {{3.9}}, {0, 0, 0}, 13, 0), 3u);
  EXPECT_EQ(num_worth_fetching(planner, 4, {{4.1}}, {0, 0, 0}, 13, 0), 0u);
  EXPECT_EQ(num_worth_fetching(planner, 4, {{1.0}}, {}, 13, 0), 0u);
}

TEST(everything_is_fetched_while_a_speed_is_unknown) {
  EXPECT_EQ(num_worth_fetching(one_second_per_token(), 4, {{0.0}}, {0, 0, 0}, 13, 0), 3u);
  EXPECT_EQ(num_worth_fetching(StepPlanner({64, 4, 4, 16, 16, true}), 4, {{100.0}}, {0, 0, 0}, 13, 0), 3u);
}

TEST(blocks_queued_in_front_delay_a_fetch) {
  const StepPlanner planner = one_second_per_token();
  EXPECT_EQ(num_worth_fetching(planner, 4, {{2.0, 3}}, {0, 0, 0}, 13, 0), 3u);
  EXPECT_EQ(num_worth_fetching(planner, 4, {{2.0, 4}}, {0, 0, 0}, 13, 0), 0u);
}

TEST(each_tier_is_considered_separately) {
  const StepPlanner planner = one_second_per_token();
  const Found found{0, 0, 1, 1};
  EXPECT_EQ(num_worth_fetching(planner, 4, {{0.1}, {1.0}}, found, 17, 0), 4u);
  EXPECT_EQ(num_worth_fetching(planner, 4, {{0.1}, {9.0}}, found, 17, 0), 2u);
  // Tiers fetch concurrently, so a second slow tier adds nothing.
  EXPECT_EQ(num_worth_fetching(planner, 4, {{6.0}, {6.0}}, found, 17, 0), 4u);
  EXPECT_EQ(num_worth_fetching(planner, 4, {{9.0}, {9.0}}, found, 17, 0), 0u);
}

TEST(the_tier_of_the_last_block_alone_brings_the_state) {
  const StepPlanner planner = one_second_per_token();
  // The state takes as long as two blocks.
  EXPECT_EQ(num_worth_fetching(planner, 4, {{2.0, 0, 2}}, {0, 0, 0}, 13, 0), 3u);
  EXPECT_EQ(num_worth_fetching(planner, 4, {{2.6, 0, 2}}, {0, 0, 0}, 13, 0), 0u);
  EXPECT_EQ(num_worth_fetching(planner, 4, {{2.0, 2, 2}}, {0, 0, 0}, 13, 0), 0u);
  // The first tier would take 18 s with a state, longer than computing its blocks and those of the second
  // one.
  const Found found{0, 0, 1, 1};
  EXPECT_EQ(num_worth_fetching(planner, 4, {{6.0, 0, 1}, {1.0, 0, 1}}, found, 17, 0), 4u);
  EXPECT_EQ(num_worth_fetching(planner, 4, {{0.1, 0, 1}, {6.0, 0, 1}}, found, 17, 0), 2u);
}

TEST(blocks_after_which_no_request_can_begin_save_nothing) {
  const StepPlanner planner = one_second_per_token();
  const Found found{0, 0, 1, 1};
  const std::vector<FetchSpeed> speeds{{0.1}, {6.0}};
  const auto all_or_none = [](size_t num_blocks) { return num_blocks < 4 ? 0 : num_blocks; };
  EXPECT_EQ(num_worth_fetching(planner, 4, speeds, found, 17, 0), 2u);
  EXPECT_EQ(num_worth_fetching(planner, 4, speeds, found, 17, 0, all_or_none), 4u);
  EXPECT_EQ(num_worth_fetching(planner, 4, {{0.1}, {9.0}}, found, 17, 0, all_or_none), 0u);
  const auto first_three = [](size_t num_blocks) { return std::min<size_t>(num_blocks, 3); };
  EXPECT_EQ(num_worth_fetching(planner, 4, {{0.1}, {4.5}}, found, 17, 0, first_three), 2u);
  EXPECT_EQ(num_worth_fetching(planner, 4, {{0.1}, {3.9}}, found, 17, 0, first_three), 3u);
}
