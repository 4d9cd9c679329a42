#include <limits>
#include <numeric>

#include "check.h"
#include "sched/scheduler.h"

using namespace ballast;

namespace {

using Tokens = std::vector<int32_t>;

constexpr double kAnyTime = std::numeric_limits<double>::infinity();

// A decode-lane step takes 1 s plus 0.1 s per token after the first one; a pass takes 4 s.
SchedulerConfig limits(bool has_prefill_lane) {
  SchedulerConfig config{/*num_blocks=*/256,
                         /*block_tokens=*/4,
                         /*max_batch_size=*/2,
                         /*chunk_size=*/16,
                         /*prefill_chunk_size=*/32, true};
  config.decode_costs = CostCurve("decode_costs", {{1, 1.0}, {11, 2.0}});
  if (has_prefill_lane) config.prefill_costs = CostCurve("prefill_costs", {{1, 4.0}, {32, 4.0}});
  return config;
}

Tokens prompt(int32_t seed, int32_t count) {
  Tokens tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), seed * 10000);
  return tokens;
}

double wait_of(const QueueState& state, int64_t client = 9, double horizon_s = kAnyTime) {
  return state.predicted_wait_s(0, client, 4, 10, horizon_s);
}

struct Run : Scheduler {
  using Scheduler::Scheduler;
  void arrive(int64_t seq, int32_t num_tokens, int64_t max_tokens, int64_t client = 0) {
    AddOptions options;
    options.client = client;
    add(SeqId{seq}, prompt(static_cast<int32_t>(seq), num_tokens), max_tokens, {}, options);
  }
  void step() {
    const auto decided = plan();
    commit(Tokens(static_cast<size_t>(decided->num_samples()), 7));
  }
};

}  // namespace

TEST(a_free_slot_means_no_queue_time) {
  Run run(limits(false));
  EXPECT_EQ(wait_of(run.queue_state()), 0.0);
  run.arrive(1, 4, 20);
  run.step();
  EXPECT_EQ(wait_of(run.queue_state()), 0.0);
}

TEST(a_request_waits_until_a_reply_ends) {
  Run run(limits(false));
  run.arrive(1, 4, 5);
  run.arrive(2, 4, 20);
  run.step();  // both have one token; the first one needs 4 more
  const double step_s = run.costs().decode().seconds(2);
  const double wait_s = wait_of(run.queue_state());
  EXPECT(wait_s > 3.99 * step_s && wait_s < 4.01 * step_s);
  QueueState crowded = run.queue_state();
  crowded.arrive(0, 9, 4, 10);
  EXPECT(wait_of(crowded) > wait_s);
}

TEST(a_client_without_waiting_requests_precedes_another_ones_further_requests) {
  Run run(limits(false));
  run.arrive(1, 4, 5);
  run.arrive(2, 4, 5);
  run.step();
  for (int64_t seq = 3; seq < 9; ++seq) run.arrive(seq, 4, 5, /*client=*/1);
  const QueueState state = run.queue_state();
  EXPECT(wait_of(state, /*client=*/2) < wait_of(state, /*client=*/1));
}

TEST(expected_reply_lengths_follow_earlier_replies) {
  Run run(limits(false));
  run.arrive(1, 4, 1000);
  run.arrive(2, 4, 1000);
  run.step();
  EXPECT(wait_of(run.queue_state()) > 900.0);
  EXPECT(wait_of(run.queue_state({10.0})) < 15.0);
  EXPECT_EQ((ReplyLength{10.0}).expected(4, 1000), 6);
  EXPECT_EQ((ReplyLength{10.0}).expected(40, 1000), 3);
  EXPECT_EQ((ReplyLength{10.0}).expected(0, 2), 2);
  EXPECT_EQ(ReplyLength{}.expected(4, 7), 7);
}

TEST(an_estimate_ends_at_its_horizon) {
  Run run(limits(false));
  run.arrive(1, 4, 1000);
  run.arrive(2, 4, 1000);
  run.step();
  const double wait_s = wait_of(run.queue_state(), 9, /*horizon_s=*/5.0);
  EXPECT(wait_s > 5.0);
}

TEST(a_request_waits_for_the_pass_that_is_outstanding) {
  SchedulerConfig config = limits(true);
  config.prefill_lane_tokens = 1;
  Run run(config);
  run.arrive(1, 30, 50);
  const auto pass = run.plan(Lane::kPrefill, 10.0);
  const double wait_s = wait_of(run.queue_state({}, 1.0, 11.0));
  EXPECT(wait_s > 2.9 && wait_s < 3.1);
  const double later_s =
      run.queue_state({}, 1.0, 11.0).predicted_wait_s(0, 9, 4, 10, kAnyTime, /*elapsed_s=*/2.0);
  EXPECT(later_s > 0.9 && later_s < 1.1);
  run.commit(Tokens(static_cast<size_t>(pass->num_samples()), 7), Lane::kPrefill);
}

TEST(without_costs_no_wait_is_predicted) {
  SchedulerConfig config = limits(false);
  config.decode_costs = {};
  Run run(config);
  for (int64_t seq = 1; seq < 9; ++seq) run.arrive(seq, 4, 5);
  EXPECT_EQ(wait_of(run.queue_state()), 0.0);
}
