#include <limits>
#include <numeric>

#include "check.h"
#include "sched/scheduler.h"

using namespace ballast;

namespace {

using Tokens = std::vector<int32_t>;

constexpr Lane kDecode = Lane::kDecode, kPrefill = Lane::kPrefill;

// A step of the decode lane takes 1 s and 0.1 s for each token after the first; one of the prefill lane 4 s.
SchedulerConfig two_lanes(int32_t num_blocks = 64) {
  SchedulerConfig config{num_blocks,
                         /*block_tokens=*/4,
                         /*max_batch_size=*/4,
                         /*chunk_size=*/16,
                         /*prefill_chunk_size=*/32,
                         /*max_queue=*/8,
                         true};
  config.decode_costs = CostCurve("decode_costs", {{1, 1.0}, {11, 2.0}});
  config.prefill_costs = CostCurve("prefill_costs", {{1, 4.0}, {32, 4.0}});
  return config;
}

SchedulerConfig one_lane() {
  SchedulerConfig config = two_lanes();
  config.prefill_costs = {};
  return config;
}

Tokens prompt(int32_t seed, int32_t count) {
  Tokens tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), seed * 10000);
  return tokens;
}

struct Run : Scheduler {
  using Scheduler::Scheduler;

  void arrive(int64_t seq, int32_t num_tokens, int64_t max_tokens = 50) {
    add(SeqId{seq}, prompt(static_cast<int32_t>(seq), num_tokens), max_tokens, {});
    check();
  }
  std::shared_ptr<Plan> begin(Lane lane) {
    auto decided = plan(lane);
    check();
    return decided;
  }
  void end(const Plan& decided, Lane lane) {
    commit(Tokens(static_cast<size_t>(decided.num_samples), 7), lane);
    check();
  }
  void step(Lane lane = kDecode) { end(*begin(lane), lane); }
};

std::vector<int64_t> seqs(const Plan& plan) {
  std::vector<int64_t> ids;
  for (const SeqId seq : plan.seqs) ids.push_back(static_cast<int64_t>(seq));
  return ids;
}

Tokens sizes(const Plan& plan) {
  Tokens counts;
  for (size_t i = 0; i + 1 < plan.query_indptr.size(); ++i) {
    counts.push_back(plan.query_indptr[i + 1] - plan.query_indptr[i]);
  }
  return counts;
}

using Ids = std::vector<int64_t>;

}  // namespace

TEST(a_curve_is_linear_between_its_points_and_goes_on_as_it_ends) {
  const CostCurve curve("costs", {{2, 1.0}, {4, 3.0}, {8, 4.0}});
  EXPECT_EQ(curve.seconds(1), 1.0);
  EXPECT_EQ(curve.seconds(3), 2.0);
  EXPECT_EQ(curve.seconds(6), 3.5);
  EXPECT_EQ(curve.seconds(16), 6.0);
  EXPECT_EQ(curve.tokens_within(0.5, 100), 0);
  EXPECT_EQ(curve.tokens_within(3.5, 100), 6);
  EXPECT_EQ(curve.tokens_within(1e9, 100), 100);
  EXPECT_EQ(CostCurve("costs", {{5, 2.0}}).seconds(50), 2.0);
  EXPECT_EQ(CostCurve().tokens_within(0.0, 7), 7);
}

TEST(a_curve_that_no_machine_has_is_refused) {
  EXPECT_THROWS(CostCurve("decode_costs", {{0, 1.0}}), std::invalid_argument);
  EXPECT_THROWS(CostCurve("decode_costs", {{4, 1.0}, {4, 2.0}}), std::invalid_argument);
  EXPECT_THROWS(CostCurve("decode_costs", {{1, 2.0}, {4, 1.0}}), std::invalid_argument);
  EXPECT_THROWS(CostCurve("decode_costs", {{1, std::numeric_limits<double>::quiet_NaN()}}),
                std::invalid_argument);
}

TEST(prompts_make_a_step_longer_by_what_is_allowed_and_no_more) {
  SchedulerConfig config = one_lane();
  config.chunk_size = 100;
  EXPECT_EQ(prompt_budget(config, 1), 30);  // 1 s alone, three times that beside
  config.max_stall_s = 0.5;
  EXPECT_EQ(prompt_budget(config, 1), 5);
  config.max_stall_s = 0.0;
  EXPECT_EQ(prompt_budget(config, 1), 1);  // or a prompt would never end
  config.max_stall_s = 1e9;
  EXPECT_EQ(prompt_budget(config, 1), 99);
  EXPECT_EQ(prompt_budget(config, 0), config.prefill_chunk_size);
  EXPECT_EQ(prompt_budget(two_lanes(), 1), 10);  // once what it takes alone
  EXPECT_EQ(prompt_budget(two_lanes(), 0), 16);
}

TEST(a_prompt_goes_where_it_is_computed_sooner) {
  const SchedulerConfig config = two_lanes();
  EXPECT(cheaper_lane(config, 20, 0) == kDecode);   // steps of 16 and 4 tokens: 3.8 s against 4
  EXPECT(cheaper_lane(config, 32, 0) == kPrefill);  // 5 s
  EXPECT(cheaper_lane(config, 10, 1) == kDecode);   // one step of 2 s
  EXPECT(cheaper_lane(config, 31, 1) == kPrefill);  // four
  EXPECT(cheaper_lane(one_lane(), 1000, 1) == kDecode);
  SchedulerConfig asked = config;
  asked.prefill_lane_tokens = 5;
  EXPECT(cheaper_lane(asked, 4, 0) == kDecode);
  EXPECT(cheaper_lane(asked, 5, 0) == kPrefill);
}

TEST(those_that_decode_go_on_while_a_long_prompt_is_computed) {
  Run run(two_lanes());
  run.arrive(1, 3);
  run.step();
  run.arrive(2, 60);
  const auto pass = run.begin(kPrefill);
  EXPECT(seqs(*pass) == (Ids{2}));
  EXPECT_EQ(pass->num_tokens(), 32);
  for (int i = 0; i < 5; ++i) {
    const auto step = run.begin(kDecode);
    EXPECT(seqs(*step) == (Ids{1}));
    run.end(*step, kDecode);
  }
  run.end(*pass, kPrefill);
  const auto last = run.begin(kPrefill);
  EXPECT(sizes(*last) == (Tokens{28}));
  run.end(*last, kPrefill);
  EXPECT(seqs(*run.begin(kDecode)) == (Ids{1, 2}));
}

TEST(a_short_prompt_passes_one_that_waits_for_the_other_lane) {
  Run run(two_lanes());
  run.arrive(1, 60);
  const auto pass = run.begin(kPrefill);
  run.arrive(2, 60);
  run.arrive(3, 5);
  const auto step = run.begin(kDecode);
  EXPECT(seqs(*step) == (Ids{3}));
  run.end(*step, kDecode);
  run.end(*pass, kPrefill);
}

TEST(who_is_passed_keeps_room_for_itself) {
  Run run(two_lanes(/*num_blocks=*/20));
  run.arrive(1, 45, 2);  // 12 blocks
  const auto pass = run.begin(kPrefill);
  run.arrive(2, 45, 2);  // as many, which are not there
  run.arrive(3, 5, 2);   // has room, but takes it from who came before
  EXPECT_EQ(run.begin(kDecode)->num_requests(), 0);
  run.end(*pass, kPrefill);
}

TEST(a_much_shorter_prompt_joins_one_that_is_part_way_and_half_is_left_for_it) {
  Run run(one_lane());
  run.arrive(1, 150);
  run.step();  // 32 tokens
  run.arrive(2, 20);
  run.arrive(3, 30);  // more than a quarter of what is left
  const auto step = run.begin(kDecode);
  EXPECT(seqs(*step) == (Ids{1, 2}));
  EXPECT(sizes(*step) == (Tokens{16, 16}));
  run.end(*step, kDecode);
  const auto next = run.begin(kDecode);
  EXPECT(seqs(*next) == (Ids{1, 2}));
  EXPECT(sizes(*next) == (Tokens{28, 4}));
  run.end(*next, kDecode);
}

TEST(a_request_short_of_blocks_waits_for_the_other_lane_and_nothing_else_starts) {
  Run run(two_lanes(/*num_blocks=*/16));
  run.arrive(1, 7, 30);
  run.step();            // it has 2 blocks for 7 tokens, and one more free
  run.arrive(2, 48, 2);  // 12 blocks
  const auto pass = run.begin(kPrefill);
  EXPECT(seqs(*pass) == (Ids{2}));
  for (int i = 0; i < 9; ++i) run.step();  // 16 tokens have 4 blocks: the cache is full
  run.arrive(3, 1, 1);
  const auto starved = run.begin(kDecode);
  EXPECT_EQ(starved->num_requests(), 0);
  EXPECT(starved->preempted.empty());
  run.end(*pass, kPrefill);
  EXPECT(run.begin(kPrefill)->num_requests() == 0);  // else those that it starts could be preempted by nobody
  const auto step = run.begin(kDecode);
  EXPECT(seqs(*step) == (Ids{1}));
  EXPECT(step->preempted == (std::vector<SeqId>{SeqId{2}}));
}

TEST(an_abort_of_a_prompt_in_its_own_lane_waits_for_its_step) {
  Run run(two_lanes());
  run.arrive(1, 60);
  const auto pass = run.begin(kPrefill);
  EXPECT(run.abort(SeqId{1}));
  run.check();
  EXPECT(run.stats().used_tokens > 0);
  run.end(*pass, kPrefill);
  EXPECT_EQ(run.stats().used_tokens, 0);
  EXPECT_EQ(run.begin(kPrefill)->num_requests(), 0);
}

TEST(there_is_no_prefill_lane_without_its_costs) {
  Run run(one_lane());
  EXPECT_THROWS(run.plan(kPrefill), std::logic_error);
  EXPECT_THROWS(run.commit({}, kPrefill), std::logic_error);
}

TEST(prompts_take_the_steps_of_the_cheaper_lane) {
  EXPECT_EQ(prompt_seconds(SchedulerConfig{}, 100, 0), 0.0);  // nobody knows
  const SchedulerConfig lanes = two_lanes();
  EXPECT_EQ(prompt_seconds(lanes, 11, 0), 2.0);
  EXPECT_EQ(prompt_seconds(lanes, 100, 0), 16.0);  // four steps of the prefill lane
  const SchedulerConfig lane = one_lane();
  EXPECT_EQ(prompt_seconds(lane, 43, 0), lane.decode_costs.seconds(32) + 2.0);
  EXPECT(prompt_seconds(lane, 64, 2) > prompt_seconds(lane, 64, 0));
}
