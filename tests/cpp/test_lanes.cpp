#include <algorithm>
#include <limits>
#include <numeric>

#include "check.h"
#include "sched/scheduler.h"

using namespace ballast;

namespace {

using Tokens = std::vector<int32_t>;

constexpr Lane kDecode = Lane::kDecode, kPrefill = Lane::kPrefill;

// A decode-lane step takes 1 s plus 0.1 s per token after the first one, 0.3 s from 11 tokens on; a prefill
// pass takes 4 s.
SchedulerConfig two_lanes(int32_t num_blocks = 64) {
  SchedulerConfig config{num_blocks,
                         /*block_tokens=*/4,
                         /*max_batch_size=*/4,
                         /*chunk_size=*/16,
                         /*prefill_chunk_size=*/32,
                         true};
  config.decode_costs = CostCurve("decode_costs", {{1, 1.0}, {11, 2.0}, {31, 8.0}});
  config.prefill_costs = CostCurve("prefill_costs", {{1, 4.0}, {32, 4.0}});
  return config;
}

SchedulerConfig one_lane() {
  SchedulerConfig config = two_lanes();
  config.decode_costs = CostCurve("decode_costs", {{1, 1.0}, {11, 2.0}});
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
    commit(Tokens(static_cast<size_t>(decided.num_samples()), 7), lane);
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

TEST(a_curve_is_linear_between_its_points_and_continues_its_last_segment) {
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

TEST(an_impossible_curve_is_rejected) {
  EXPECT_THROWS(CostCurve("decode_costs", {{0, 1.0}}), std::invalid_argument);
  EXPECT_THROWS(CostCurve("decode_costs", {{4, 1.0}, {4, 2.0}}), std::invalid_argument);
  EXPECT_THROWS(CostCurve("decode_costs", {{1, 2.0}, {4, 1.0}}), std::invalid_argument);
  EXPECT_THROWS(CostCurve("decode_costs", {{1, std::numeric_limits<double>::quiet_NaN()}}),
                std::invalid_argument);
}

TEST(the_costs_of_steps_follow_what_is_observed) {
  CostCurve curve("costs", {{1, 1.0}, {11, 2.0}});
  for (int i = 0; i < 200; ++i) curve.observe(11, 3.0);
  EXPECT(curve.seconds(11) > 2.9 && curve.seconds(11) <= 3.0);
  EXPECT(curve.seconds(1) > 0.99 && curve.seconds(1) < 1.01);
  curve.observe(6, 1e6);  // a pause of the machine counts as twice the expected time
  EXPECT(curve.seconds(6) < 1.06 * 2.0);
  for (int i = 0; i < 1000; ++i) curve.observe(1, 1e6);
  EXPECT(curve.seconds(1) <= 8.0);
  EXPECT(curve.seconds(11) >= curve.seconds(1));
  for (int i = 0; i < 1000; ++i) curve.observe(11, 1e-9);
  EXPECT(curve.seconds(11) >= 2.0 / 8 && curve.seconds(1) <= curve.seconds(11));
  CostCurve unknown;
  unknown.observe(3, 1.0);
  EXPECT(unknown.empty());
}

TEST(prompts_lengthen_a_step_with_decoding_requests_by_the_allowed_time) {
  SchedulerConfig config = one_lane();
  config.chunk_size = 100;
  EXPECT_EQ(StepPlanner(config).prompt_budget(1, 1), 30);  // 1 s alone, and three times that for prompts
  config.max_stall_s = 0.5;
  EXPECT_EQ(StepPlanner(config).prompt_budget(1, 1), 5);
  config.max_stall_s = 0.0;
  EXPECT_EQ(StepPlanner(config).prompt_budget(1, 1), 1);  // otherwise a prompt would never end
  config.max_stall_s = 1e9;
  EXPECT_EQ(StepPlanner(config).prompt_budget(1, 1), 99);
  EXPECT_EQ(StepPlanner(config).prompt_budget(0, 1), config.prefill_chunk_size);
  EXPECT_EQ(StepPlanner(two_lanes()).prompt_budget(1, 1), 10);  // as long as the step alone
}

TEST(the_allowed_time_grows_if_more_prompts_wait_than_requests_decode) {
  SchedulerConfig config = one_lane();
  config.chunk_size = 100;
  const StepPlanner planner(config);
  EXPECT_EQ(planner.prompt_budget(1, 2), 60);
  EXPECT_EQ(planner.prompt_budget(2, 2), planner.prompt_budget(2, 1));
  EXPECT_EQ(planner.prompt_budget(1, 15), 99);
  config.max_stall_s = 0.5;
  EXPECT_EQ(StepPlanner(config).prompt_budget(1, 15), 5);  // an explicit limit still applies
}

TEST(an_idle_step_of_the_decode_lane_may_be_longer_than_chunk_size) {
  SchedulerConfig config = two_lanes();
  EXPECT_EQ(StepPlanner(config).prompt_budget(0, 1), 32);
  config.prefill_chunk_size = 10000;
  EXPECT_EQ(StepPlanner(config).prompt_budget(0, 1), 1024);
  EXPECT_EQ(StepPlanner(config).prompt_budget(0, 1, /*in_pass=*/true), config.chunk_size);
}

TEST(one_prompt_uses_the_faster_lane) {
  const StepPlanner planner(two_lanes());
  const auto lane_of = [&](int32_t tokens, int32_t num_decode) {
    return planner.assign_lanes({num_decode}, {tokens}).front();
  };
  EXPECT(lane_of(17, 0) == kDecode);   // 3.8 s
  EXPECT(lane_of(18, 0) == kPrefill);  // 4.1 s
  EXPECT(lane_of(10, 1) == kDecode);   // one step of 2 s
  EXPECT(lane_of(31, 1) == kPrefill);  // four steps
  EXPECT(StepPlanner(one_lane()).assign_lanes({1}, {1000}).front() == kDecode);
  SchedulerConfig fixed = two_lanes();
  fixed.prefill_lane_tokens = 5;
  EXPECT(StepPlanner(fixed).assign_lanes({}, {4, 5}) == (std::vector<Lane>{kDecode, kPrefill}));
}

TEST(many_short_prompts_share_one_pass) {
  // Steps of the decode lane have 10 tokens with a decoding request: each prompt alone would be faster there.
  const StepPlanner planner(two_lanes());
  EXPECT(planner.assign_lanes({1}, {8}).front() == kDecode);
  const auto lanes = planner.assign_lanes({2}, {8, 8, 8, 8});
  EXPECT(std::count(lanes.begin(), lanes.end(), kPrefill) >= 2);
}

// Compared with every assignment, not only with those by length: it is the best of those in which all prompts
// in the decode lane are shorter than those in the prefill lane.
TEST(the_assignment_minimises_the_times_of_first_tokens) {
  uint32_t random = 12345;
  const auto draw = [&](int32_t most) {
    random = random * 1664525u + 1013904223u;
    return static_cast<int32_t>(random >> 8) % most;
  };
  const StepPlanner planner(two_lanes());
  for (int round = 0; round < 300; ++round) {
    const LaneState state{draw(4), 0.5 * draw(4), 1.5 * draw(4)};
    Tokens prompts(static_cast<size_t>(1 + draw(6)));
    for (int32_t& tokens : prompts) tokens = 1 + draw(1 + draw(60));
    const double chosen = planner.sum_of_first_tokens(state, prompts, planner.assign_lanes(state, prompts));
    for (uint32_t division = 0; division < (1u << prompts.size()); ++division) {
      std::vector<Lane> lanes;
      int32_t longest = 0, shortest = 1000;
      for (size_t i = 0; i < prompts.size(); ++i) {
        lanes.push_back(division >> i & 1 ? kDecode : kPrefill);
        if (lanes[i] == kDecode) longest = std::max(longest, prompts[i]);
        if (lanes[i] == kPrefill) shortest = std::min(shortest, prompts[i]);
      }
      if (longest < shortest) EXPECT(chosen <= planner.sum_of_first_tokens(state, prompts, lanes));
    }
  }
}

TEST(short_prompts_do_not_wait_for_a_pass_over_a_long_one) {
  const StepPlanner planner(two_lanes());
  EXPECT(planner.assign_lanes({1}, {200, 6}) == (std::vector<Lane>{kPrefill, kDecode}));
  // The outstanding pass takes 60 s more; a prompt that would have joined the next pass is computed now.
  EXPECT(planner.assign_lanes({1, 0.0, 60.0}, {31}).front() == kDecode);
}

TEST(decoding_continues_while_a_long_prompt_is_computed) {
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

TEST(a_request_that_waits_for_the_other_lane_is_skipped) {
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

TEST(blocks_are_reserved_for_the_first_skipped_request) {
  Run run(two_lanes(/*num_blocks=*/20));
  run.arrive(1, 45, 2);  // 12 blocks
  const auto pass = run.begin(kPrefill);
  run.arrive(2, 45, 2);  // as many, but they are not free
  run.arrive(3, 5, 2);   // has room, but would take it from an earlier request
  EXPECT_EQ(run.begin(kDecode)->num_requests(), 0);
  run.end(*pass, kPrefill);
}

TEST(a_much_shorter_prompt_joins_a_partly_computed_one_in_half_of_the_budget) {
  Run run(one_lane());
  run.arrive(1, 150);
  run.step();  // 32 tokens
  run.arrive(2, 20);
  run.arrive(3, 30);  // more than a quarter of the rest
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
  SchedulerConfig config = two_lanes(/*num_blocks=*/16);
  config.prefill_lane_tokens = 20;
  Run run(config);
  run.arrive(1, 7, 30);
  run.step();            // it has 2 blocks for 7 tokens, and one more free
  run.arrive(2, 48, 2);  // 12 blocks
  const auto pass = run.begin(kPrefill);
  EXPECT(seqs(*pass) == (Ids{2}));
  for (int i = 0; i < 9; ++i) run.step();  // 16 tokens use 4 blocks: the cache is full
  run.arrive(3, 1, 1);
  const auto starved = run.begin(kDecode);
  EXPECT_EQ(starved->num_requests(), 0);
  EXPECT(starved->preempted.empty());
  run.end(*pass, kPrefill);
  EXPECT(run.begin(kPrefill)->num_requests() == 0);  // otherwise nothing could preempt its requests
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

TEST(the_time_of_prompts_is_that_of_the_faster_lane) {
  EXPECT_EQ(StepPlanner(SchedulerConfig{}).prompt_seconds(100, 0), 0.0);  // costs are unknown
  const StepPlanner lanes(two_lanes());
  EXPECT_EQ(lanes.prompt_seconds(11, 0), 2.0);
  EXPECT_EQ(lanes.prompt_seconds(100, 0), 16.0);  // four passes
  const StepPlanner lane(one_lane());
  EXPECT_EQ(lane.prompt_seconds(43, 0), lane.costs().decode().seconds(32) + 2.0);
  EXPECT(lane.prompt_seconds(64, 2) > lane.prompt_seconds(64, 0));
}

TEST(a_pass_waits_for_a_joint_step_and_the_planner_knows) {
  // Without joint steps, the best is one prompt in the decode lane and the others in a concurrent pass.
  SchedulerConfig config = two_lanes();
  const StepPlanner apart(config);
  const Tokens prompts{15, 16, 16};
  const auto lanes = apart.assign_lanes({}, prompts);
  EXPECT_EQ(std::count(lanes.begin(), lanes.end(), kDecode), 1);
  // A joint step of 15 tokens delays the pass by 3.2 s, so all share one pass.
  config.joint_tokens = {12, 64};
  const auto joint = StepPlanner(config).assign_lanes({}, prompts);
  EXPECT_EQ(std::count(joint.begin(), joint.end(), kPrefill),
            3 - std::count(joint.begin(), joint.end(), kDecode));
  EXPECT(StepPlanner(config).uses_link(12, false));
  EXPECT(!StepPlanner(config).uses_link(65, false));
  EXPECT(!StepPlanner(config).uses_link(12, true) && !StepPlanner(config).uses_link(11, false));
  EXPECT(!apart.uses_link(1000, false));
  // The outstanding step of the decode lane occupies the link for 10 s.
  const StepPlanner planner(config);
  const double pass_s = planner.costs().prefill(/*during_decode=*/true).seconds(16);
  LaneState busy{0, 10.0, 0.0, true};
  EXPECT_EQ(planner.sum_of_first_tokens(busy, {16}, {kPrefill}), 10.0 + pass_s);
  busy.uses_link = false;
  EXPECT_EQ(planner.sum_of_first_tokens(busy, {16}, {kPrefill}), pass_s);
}

TEST(a_pass_is_slower_while_the_decode_lane_computes) {
  const StepPlanner planner(two_lanes());
  const double alone_s = planner.costs().prefill().seconds(16);
  const double shared_s = planner.costs().prefill(/*during_decode=*/true).seconds(16);
  EXPECT(shared_s > alone_s);
  EXPECT_EQ(planner.sum_of_first_tokens({}, {16}, {kPrefill}), alone_s);
  EXPECT_EQ(planner.sum_of_first_tokens({/*num_decode=*/1}, {16}, {kPrefill}), shared_s);
  const double both = planner.sum_of_first_tokens({}, {4, 16}, {kDecode, kPrefill});
  EXPECT_EQ(both, planner.costs().decode().seconds(4) + shared_s);
}

TEST(a_pass_waits_for_a_slot_that_becomes_free_soon_if_requests_wait) {
  const StepPlanner planner(two_lanes());
  // A pass of 5.6 s slows 3 decoding requests by a third: another pass would cost them 5.6 s in total.
  EXPECT(planner.holds_pass(3, 1, 0.0, 1.0));
  EXPECT(!planner.holds_pass(3, 1, 0.0, 6.0));  // the next slot becomes free late
  EXPECT(!planner.holds_pass(3, 2, 2.0, 1.0));  // two prompts were held for too long
  EXPECT(!planner.holds_pass(3, 1, 0.0, 0.0));  // no releases are known
  EXPECT(!planner.holds_pass(0, 1, 0.0, 1.0));

  SchedulerConfig config = two_lanes();
  config.prefill_lane_tokens = 20;
  Run run(config);
  for (int64_t seq = 1; seq <= 4; ++seq) run.arrive(seq, 3, seq < 3 ? 2 + seq : 40);
  double now_s = 0.0;
  const auto step = [&] {
    const auto plan = run.plan(kDecode, now_s);
    now_s += 1.2;
    run.commit(Tokens(static_cast<size_t>(plan->num_samples()), 7), kDecode, now_s);
    run.check();
  };
  for (int i = 0; i < 3; ++i) step();  // the first request ends
  EXPECT_EQ(run.stats().running, 3);
  for (int64_t seq = 5; seq <= 7; ++seq) run.arrive(seq, 25);
  EXPECT_EQ(run.plan(kPrefill, now_s)->num_requests(), 1);  // one release does not predict the next
  run.commit({7}, kPrefill, now_s);
  step();  // the second request ends, 1.2 s after the first one
  EXPECT_EQ(run.plan(kPrefill, now_s)->num_requests(), 0);  // held: another request waits for a slot
  now_s += 20.0;
  EXPECT_EQ(run.plan(kPrefill, now_s)->num_requests(), 1);  // but not for long
}

// Plans without a time do not change costs; plans with a time do.
TEST(costs_follow_steps_whose_times_are_given) {
  Run run(two_lanes());
  run.arrive(1, 3);
  run.step();
  const double before_s = run.costs().decode().seconds(1);
  const double in_pass_s = run.costs().decode(/*in_pass=*/true).seconds(1);
  double now_s = 100.0;
  for (int i = 0; i < 20; ++i) {
    const auto step = run.plan(kDecode, now_s);
    now_s += 1.5;
    run.commit(Tokens(static_cast<size_t>(step->num_samples()), 7), kDecode, now_s);
  }
  EXPECT(run.costs().decode().seconds(1) > before_s * 1.3);
  EXPECT(run.costs().decode(/*in_pass=*/true).seconds(1) == in_pass_s);
}

TEST(the_time_of_a_pass_updates_the_curve_with_or_without_decode) {
  for (const bool during_decode : {false, true}) {
    Run run(two_lanes());
    const double alone_s = run.costs().prefill().seconds(30),
                 shared_s = run.costs().prefill(true).seconds(30);
    double now_s = 0.0;
    for (int64_t seq = 2; seq < 22; ++seq) {
      run.arrive(seq, 30, 1);
      run.plan(kPrefill, now_s);
      if (during_decode) {
        run.arrive(seq + 100, 1, 1);
        run.plan(kDecode, now_s);
        run.commit({7}, kDecode, now_s + 1.0);
      }
      now_s += 8.0;
      run.commit({7}, kPrefill, now_s);
      run.check();
    }
    EXPECT_EQ(run.costs().prefill().seconds(30) > alone_s * 1.2, !during_decode);
    EXPECT_EQ(run.costs().prefill(true).seconds(30) > shared_s * 1.2, during_decode);
  }
}

TEST(an_outstanding_pass_that_is_nearly_over_is_worth_waiting_for) {
  const auto lane_of_second = [](double elapsed_s) {
    Run run(two_lanes());
    run.arrive(1, 3);
    run.step();
    run.arrive(2, 32);
    run.plan(kPrefill, 0.0);  // 5.6 s
    run.arrive(3, 30);        // 3 steps of 10 tokens: about 9 s
    return run.plan(kDecode, elapsed_s)->num_requests() == 2 ? kDecode : kPrefill;
  };
  EXPECT(lane_of_second(0.0) == kDecode);
  EXPECT(lane_of_second(5.5) == kPrefill);
}

TEST(a_scored_prompt_takes_no_slot_of_earlier_prompts_that_wait_for_the_other_lane) {
  AddOptions scored;
  scored.scores_prompt = true;
  const auto is_admitted = [&](int64_t num_waiting) {
    Run run(two_lanes());
    for (int64_t seq = 1; seq <= num_waiting; ++seq) run.arrive(seq, 32);
    run.add(SeqId{9}, prompt(9, 4), 1, {}, scored);
    return seqs(*run.begin(kDecode)) == std::vector<int64_t>{9};
  };
  EXPECT(is_admitted(3));
  EXPECT(!is_admitted(4));
}
