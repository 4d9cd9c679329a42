#include <algorithm>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "base/check.h"
#include "check.h"
#include "sched/scheduler.h"

using namespace ballast;

namespace {

using Tokens = std::vector<int32_t>;

constexpr int32_t kStopToken = 999;

SchedulerConfig config(int32_t num_blocks, int32_t block_tokens = 4, int32_t chunk_size = 8) {
  return {num_blocks, block_tokens, /*max_batch_size=*/4, chunk_size, chunk_size, true};
}

// `count` tokens that are unique to `seed`.
Tokens prompt(int32_t seed, int32_t count) {
  Tokens tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), seed * 10000);
  return tokens;
}

AddOptions options(int64_t min_tokens, int32_t priority = 0) {
  AddOptions chosen;
  chosen.min_tokens = min_tokens;
  chosen.priority = priority;
  return chosen;
}

AddOptions from_client(int64_t client, int32_t priority = 0) {
  AddOptions chosen = options(0, priority);
  chosen.client = client;
  return chosen;
}

// A scheduler whose rows sample their sequence's 1st, 2nd, 3rd … token as 1, 2, 3 …, checked after every
// call.
struct Run {
  explicit Run(const SchedulerConfig& c) : scheduler(c) {}

  void add(int64_t seq, Tokens tokens, int64_t max_tokens, const AddOptions& chosen = {}) {
    scheduler.add(SeqId{seq}, std::move(tokens), max_tokens, {kStopToken}, chosen);
    scheduler.check();
  }

  std::shared_ptr<Plan> plan() {
    if (++num_plans > 1000) throw std::runtime_error("the scheduler does not come to an end");
    auto decided = scheduler.plan();
    scheduler.check();
    for (const int32_t slot : decided->slots) EXPECT(slot >= 1);
    return decided;
  }

  void commit(const Plan& decided) {
    Tokens sampled;
    for (size_t row = 0; row < decided.seqs.size(); ++row) {
      if (decided.samples[row]) sampled.push_back(next_token(decided.seqs[row]));
    }
    commit(sampled);
  }

  void commit(const Tokens& sampled) {
    const auto committed = scheduler.commit(sampled);
    scheduler.check();
    for (size_t i = 0; i < committed->seqs.size(); ++i) {
      got[committed->seqs[i]].push_back(committed->tokens[i]);
      if (committed->finish[i] != Finish::kNone) finished[committed->seqs[i]] = committed->finish[i];
    }
  }

  void propose(int64_t seq, Tokens draft_tokens) {
    scheduler.propose(SeqId{seq}, std::move(draft_tokens));
    scheduler.check();
  }

  std::shared_ptr<Plan> step() {
    auto decided = plan();
    commit(*decided);
    return decided;
  }

  void run_dry() {
    while (step()->num_requests() > 0) continue;
  }

  bool abort(int64_t seq) {
    const bool live = scheduler.abort(SeqId{seq});
    scheduler.check();
    return live;
  }

  Scheduler scheduler;
  int num_plans = 0;
  std::function<int32_t(SeqId)> next_token = [this](SeqId seq) {
    return static_cast<int32_t>(got[seq].size()) + 1;
  };
  std::map<SeqId, Tokens> got;
  std::map<SeqId, Finish> finished;
};

std::vector<int64_t> seqs(const Plan& plan) {
  std::vector<int64_t> ids;
  for (const SeqId seq : plan.seqs) ids.push_back(static_cast<int64_t>(seq));
  return ids;
}

Tokens row_sizes(const Plan& plan) {
  Tokens sizes;
  for (size_t i = 0; i + 1 < plan.query_indptr.size(); ++i) {
    sizes.push_back(plan.query_indptr[i + 1] - plan.query_indptr[i]);
  }
  return sizes;
}

using Ids = std::vector<int64_t>;

}  // namespace

TEST(an_idle_scheduler_plans_nothing_repeatedly) {
  Run run(config(4));
  EXPECT_EQ(run.plan()->num_requests(), 0);
  EXPECT_EQ(run.plan()->num_requests(), 0);
  EXPECT(run.plan()->query_indptr == Tokens{0});
}

TEST(a_prompt_is_computed_in_chunks_and_then_decoded_to_its_length) {
  Run run(config(8));
  run.add(1, prompt(1, 10), 3);

  auto plan = run.step();
  EXPECT(row_sizes(*plan) == Tokens{8});
  EXPECT(plan->samples == Tokens{0});
  EXPECT(plan->earlier_ids == (Tokens{kNoToken, kNoToken, kNoToken}));
  EXPECT(plan->slots == (Tokens{4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT(plan->kv_lens == Tokens{8});

  plan = run.step();
  EXPECT(plan->token_ids == (Tokens{10008, 10009}));
  EXPECT(plan->earlier_ids == (Tokens{10005, 10006, 10007}));
  EXPECT(plan->positions == (Tokens{8, 9}));
  EXPECT(plan->samples == Tokens{1});
  EXPECT_EQ(plan->num_decode, 0);

  plan = run.step();
  EXPECT(plan->token_ids == Tokens{1});
  EXPECT(plan->earlier_ids == (Tokens{10007, 10008, 10009}));
  EXPECT(plan->positions == Tokens{10});
  EXPECT(plan->slots == Tokens{14});
  EXPECT(plan->kv_lens == Tokens{11});
  EXPECT(plan->kv_indptr == (Tokens{0, 3}));
  EXPECT_EQ(plan->num_decode, 1);

  run.step();
  EXPECT(run.got[SeqId{1}] == (Tokens{1, 2, 3}));
  EXPECT(run.finished[SeqId{1}] == Finish::kLength);
  EXPECT_EQ(run.step()->num_requests(), 0);
  EXPECT_EQ(run.scheduler.stats().used_tokens, 0);
}

TEST(decoding_requests_come_first_and_a_prompt_fills_the_rest_of_the_budget) {
  Run run(config(32));
  run.add(1, prompt(1, 3), 9);
  run.add(2, prompt(2, 4), 9);
  run.step();
  run.add(3, prompt(3, 20), 9);
  const auto plan = run.step();
  EXPECT(seqs(*plan) == (Ids{1, 2, 3}));
  EXPECT(row_sizes(*plan) == (Tokens{1, 1, 6}));
  EXPECT_EQ(plan->num_decode, 2);
  EXPECT(plan->samples == (Tokens{1, 1, 0}));
}

TEST(a_step_without_decode_rows_has_the_larger_budget) {
  SchedulerConfig limits = config(32);
  limits.prefill_chunk_size = 16;
  Run run(limits);
  run.add(1, prompt(1, 12), 9);
  EXPECT(row_sizes(*run.step()) == Tokens{12});
  run.add(2, prompt(2, 12), 9);
  EXPECT(row_sizes(*run.step()) == (Tokens{1, 7}));
}

TEST(no_more_than_max_batch_size_requests_share_a_step) {
  Run run(config(32));
  for (int64_t seq = 1; seq <= 6; ++seq) run.add(seq, prompt(static_cast<int32_t>(seq), 1), 2);
  EXPECT(seqs(*run.step()) == (Ids{1, 2, 3, 4}));
  EXPECT(seqs(*run.step()) == (Ids{1, 2, 3, 4}));
  EXPECT(seqs(*run.step()) == (Ids{5, 6}));
}

TEST(a_small_request_does_not_overtake_one_that_does_not_fit) {
  Run run(config(8));
  run.add(1, prompt(1, 8), 9);
  run.step();
  run.add(2, prompt(2, 24), 4);  // 7 blocks with its spare one, but only 6 are free
  run.add(3, prompt(3, 2), 1);
  EXPECT(seqs(*run.step()) == Ids{1});
  EXPECT_EQ(run.scheduler.stats().waiting, 2);
}

TEST(the_youngest_request_is_preempted_and_keeps_what_it_generated) {
  Run run(config(4));
  run.add(1, prompt(1, 4), 8);
  run.add(2, prompt(2, 4), 8);
  run.step();
  for (int i = 0; i < 4; ++i) run.step();  // both fill their second block
  const auto plan = run.step();
  EXPECT(seqs(*plan) == Ids{1});
  EXPECT(plan->preempted == std::vector<SeqId>{SeqId{2}});
  EXPECT_EQ(run.scheduler.stats().preemptions, 1);
  run.run_dry();
  EXPECT(run.got[SeqId{1}] == (Tokens{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT(run.got[SeqId{2}] == (Tokens{1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST(the_youngest_request_preempts_itself_when_only_older_ones_are_left) {
  Run run(config(4));
  run.add(1, prompt(1, 6), 7);
  run.add(2, prompt(2, 4), 8);
  run.step();
  run.step();
  Ids preempted;
  for (int i = 0; i < 5; ++i) {
    const auto plan = run.step();
    for (const SeqId seq : plan->preempted) preempted.push_back(static_cast<int64_t>(seq));
    EXPECT(seqs(*plan).front() == 1);
  }
  EXPECT(preempted == Ids{2});
  run.run_dry();
  EXPECT_EQ(run.got[SeqId{2}].size(), size_t{8});
}

TEST(a_preempted_request_waits_in_front_of_younger_ones_of_its_priority) {
  Run run(config(4));
  run.add(1, prompt(1, 4), 8);
  run.add(2, prompt(2, 4), 8);
  run.step();
  run.add(3, prompt(3, 4), 1);
  while (run.step()->preempted.empty()) continue;
  const auto lines = run.scheduler.describe();
  EXPECT_EQ(lines.size(), size_t{3});
  EXPECT(lines[1].seq == SeqId{2} && std::string(lines[1].state) == "preempted");
  EXPECT(lines[2].seq == SeqId{3} && std::string(lines[2].state) == "waiting");
}

TEST(lower_priority_waits_and_is_preempted_first_and_equals_are_served_in_order_of_arrival) {
  Run run(config(64));
  for (int64_t seq = 1; seq <= 4; ++seq)
    run.add(seq, prompt(static_cast<int32_t>(seq), 1), 2, options(0, /*priority=*/5));
  run.step();
  run.add(5, prompt(5, 1), 2, options(0, /*priority=*/1));
  run.add(6, prompt(6, 1), 2, options(0, /*priority=*/-1));
  run.add(7, prompt(7, 1), 2, options(0, /*priority=*/1));
  EXPECT(seqs(*run.step()) == (Ids{1, 2, 3, 4}));  // running requests are not preempted
  EXPECT(seqs(*run.step()) == (Ids{6, 5, 7}));

  Run tight(config(4));
  tight.add(1, prompt(1, 4), 8, options(0, /*priority=*/1));
  tight.step();
  tight.add(2, prompt(2, 4), 8, options(0, /*priority=*/0));
  std::vector<SeqId> preempted;
  while (preempted.empty()) preempted = tight.step()->preempted;
  EXPECT(preempted == std::vector<SeqId>{SeqId{1}});
  tight.run_dry();
  EXPECT_EQ(tight.got[SeqId{1}].size(), size_t{8});
}

// Each request generates one token alone, so requests finish in the order of their admission.
struct OneByOne : Run {
  OneByOne()
      : Run([] {
          SchedulerConfig limits = config(32);
          limits.max_batch_size = 1;
          return limits;
        }()) {}

  void come(std::initializer_list<int64_t> ids, int64_t client, int32_t priority = 0) {
    for (const int64_t seq : ids) {
      add(seq, prompt(static_cast<int32_t>(seq), 1), 1, from_client(client, priority));
    }
  }

  Ids served(int count = 100) {
    Ids order;
    while (count-- > 0) {
      const auto decided = step();
      if (decided->num_requests() == 0) break;
      order.push_back(seqs(*decided)[0]);
    }
    return order;
  }
};

TEST(clients_share_fairly_and_each_client_is_served_in_order_of_arrival) {
  OneByOne run;
  run.come({10, 11, 12, 13}, 1);
  run.come({20, 21}, 2);
  run.come({30}, 3);
  EXPECT(run.served() == (Ids{10, 20, 30, 11, 21, 12, 13}));
}

TEST(one_client_alone_is_served_first_come_first_served) {
  OneByOne run;
  run.come({10, 11, 12}, 7);
  EXPECT(run.served(2) == (Ids{10, 11}));
  run.come({13, 14}, 7);
  run.abort(13);
  run.come({15}, 7);
  EXPECT(run.served() == (Ids{12, 14, 15}));
}

TEST(a_later_client_waits_at_most_one_round) {
  OneByOne run;
  run.come({10, 11, 12, 13, 14}, 1);
  EXPECT(run.served(2) == (Ids{10, 11}));
  run.come({20, 21}, 2);
  EXPECT(run.served() == (Ids{12, 20, 13, 21, 14}));
}

TEST(later_clients_cannot_overtake_a_request_indefinitely) {
  OneByOne run;
  run.come({1, 2, 3}, 0);
  Ids order;
  for (int64_t client = 10; client < 30; ++client) {
    run.come({client, client + 100}, client);  // more than can be served
    order.push_back(run.served(1)[0]);
  }
  const auto last = std::find(order.begin(), order.end(), 3);
  EXPECT(last != order.end() && last - order.begin() < 8);
}

TEST(clients_share_fairly_within_each_priority) {
  OneByOne run;
  run.come({10, 11}, 1, /*priority=*/1);
  run.come({20}, 2, /*priority=*/1);
  run.come({12, 13}, 1, /*priority=*/0);
  run.come({30}, 3, /*priority=*/0);
  EXPECT(run.served() == (Ids{12, 30, 13, 10, 20, 11}));
}

TEST(blocks_reserved_for_a_follower_do_not_block_its_leader) {
  OneByOne run;  // one at a time
  run.come({10, 11}, 1);
  AddOptions follows = from_client(2);
  follows.leader = SeqId{11};
  run.add(20, prompt(11, 1), 1, follows);
  EXPECT(run.served() == (Ids{10, 11, 20}));
}

TEST(each_choice_of_a_request_uses_a_round_of_its_client) {
  OneByOne run;
  run.come({10}, 1);
  for (const int64_t seq : {11, 12, 13}) {
    AddOptions follows = from_client(1);
    follows.leader = SeqId{10};
    run.add(seq, prompt(10, 1), 1, follows);
  }
  run.come({20, 21}, 2);
  run.come({14}, 1);
  EXPECT(run.served() == (Ids{10, 20, 11, 21, 12, 13, 14}));
}

TEST(a_request_with_many_choices_leaves_slots_to_a_neighbour) {
  Run run(config(64));  // 4 slots
  run.add(1, prompt(1, 3), 9, from_client(1));
  AddOptions follows = from_client(1);
  follows.leader = SeqId{1};
  for (int64_t seq = 2; seq <= 8; ++seq) run.add(seq, prompt(1, 3), 9, follows);
  run.step();  // the leader's prompt
  run.add(9, prompt(9, 3), 9, from_client(2));
  EXPECT(seqs(*run.step()) == (Ids{1, 2, 9, 3}));
}

TEST(a_released_round_goes_to_the_clients_next_request) {
  OneByOne run;
  run.come({10, 11, 12, 13, 14}, 1);
  run.come({20, 21, 22}, 2);
  for (const int64_t seq : {10, 12}) EXPECT(run.abort(seq));
  EXPECT(run.served() == (Ids{11, 20, 13, 21, 14, 22}));
}

TEST(the_choices_of_an_aborted_leader_move_up) {
  OneByOne run;
  run.come({10, 11}, 1);
  AddOptions follows = from_client(1);
  follows.leader = SeqId{10};
  run.add(12, prompt(10, 1), 1, follows);
  run.come({20}, 2);
  EXPECT(run.abort(10));
  EXPECT(run.served() == (Ids{11, 20, 12}));
}

TEST(a_preempted_request_precedes_all_that_never_ran) {
  Run run(config(4));
  run.add(1, prompt(1, 4), 8, from_client(1));
  run.add(2, prompt(2, 4), 8, from_client(2));
  auto plan = run.step();
  run.add(3, prompt(3, 1), 1, from_client(3));
  run.add(4, prompt(4, 1), 1, from_client(1));
  while (plan->preempted.empty()) plan = run.step();
  EXPECT(plan->preempted == std::vector<SeqId>{SeqId{2}});
  Ids admitted;
  for (plan = run.step(); plan->num_requests() > 0; plan = run.step()) {
    for (const int64_t seq : seqs(*plan)) {
      if (std::find(admitted.begin(), admitted.end(), seq) == admitted.end()) admitted.push_back(seq);
    }
  }
  EXPECT(admitted == (Ids{1, 2, 3, 4}));
}

TEST(a_follower_reuses_the_prompt_of_its_leader) {
  Run run(config(16, 4, 64));
  run.add(1, prompt(1, 10), 4);
  AddOptions follows;
  follows.leader = SeqId{1};
  run.add(2, prompt(1, 10), 4, follows);
  EXPECT(seqs(*run.step()) == Ids{1});
  EXPECT(row_sizes(*run.step()) == (Tokens{1, 2}));  // two full blocks are shared
  EXPECT_EQ(run.scheduler.cached_tokens(SeqId{2}), 8);
  run.run_dry();

  run.add(3, prompt(3, 10), 4);
  follows.leader = SeqId{3};
  run.add(4, prompt(3, 10), 4, follows);
  run.abort(3);
  EXPECT(row_sizes(*run.step()) == Tokens{10});  // without a leader it computes its own prompt
  follows.leader = SeqId{99};
  EXPECT_THROWS(run.add(5, prompt(3, 10), 4, follows), std::invalid_argument);
}

TEST(a_follower_with_higher_priority_than_its_leader_is_rejected) {
  Run run(config(16, 4, 64));
  run.add(1, prompt(1, 10), 4, options(0, /*priority=*/2));
  AddOptions follows = options(0, /*priority=*/1);
  follows.leader = SeqId{1};
  EXPECT_THROWS(run.add(2, prompt(1, 10), 4, follows), std::invalid_argument);
  EXPECT_EQ(run.scheduler.stats().waiting, 1);
  for (const int32_t priority : {2, 3}) {
    follows.priority = priority;
    run.add(priority, prompt(1, 10), 4, follows);
  }
  run.run_dry();
  EXPECT_EQ(run.got[SeqId{3}].size(), size_t{4});
}

TEST(blocks_of_a_failed_step_are_not_published) {
  Run run(config(16));
  run.add(1, prompt(1, 14), 4);
  run.step();  // 8 of 14: two blocks
  const auto plan = run.plan();
  run.scheduler.fail(SeqId{1}, /*forget=*/false);
  run.commit(*plan);
  EXPECT(run.got[SeqId{1}].empty());
  EXPECT_EQ(run.scheduler.stats().used_tokens, 0);
  run.add(2, prompt(1, 14), 1);
  EXPECT(row_sizes(*run.step()) == Tokens{6});
}

TEST(blocks_that_led_to_wrong_numbers_are_not_reused) {
  Run run(config(16));
  run.add(1, prompt(1, 14), 4);
  run.step();
  const auto plan = run.plan();
  run.scheduler.fail(SeqId{1}, /*forget=*/true);
  run.scheduler.fail(SeqId{1}, /*forget=*/false);  // does not undo the first call
  run.commit(*plan);
  EXPECT_EQ(run.scheduler.stats().cached_tokens, 0);
  EXPECT(!run.abort(1));
}

TEST(only_a_row_of_the_outstanding_plan_can_fail) {
  Run run(config(16));
  EXPECT_THROWS(run.scheduler.fail(SeqId{1}, false), std::invalid_argument);
  run.add(1, prompt(1, 4), 4);
  EXPECT_THROWS(run.scheduler.fail(SeqId{1}, false), std::invalid_argument);
  run.step();
  EXPECT_THROWS(run.scheduler.fail(SeqId{1}, false), std::invalid_argument);
  run.run_dry();
}

TEST(the_first_waiting_request_finds_blocks_cached_in_the_meantime) {
  Run run(config(8, 4, 32));
  run.add(1, prompt(1, 8), 12);
  run.step();
  Tokens goes_on = prompt(1, 8);
  for (int32_t token = 1; token <= 20; ++token) goes_on.push_back(token);
  run.add(2, goes_on, 5);  // needs all free blocks, so it waits, and is looked up in every plan
  while (run.finished.count(SeqId{1}) == 0) EXPECT(seqs(*run.step()) == Ids{1});
  EXPECT(row_sizes(*run.step()) == Tokens{12});
  EXPECT_EQ(run.scheduler.cached_tokens(SeqId{2}), 16);
  run.run_dry();
}

TEST(a_description_of_a_long_queue_is_truncated) {
  Run run(config(32));
  for (int64_t seq = 1; seq <= 8; ++seq) run.add(seq, prompt(static_cast<int32_t>(seq), 1), 9);
  run.step();
  EXPECT_EQ(run.scheduler.describe().size(), size_t{8});
  const auto lines = run.scheduler.describe(/*max_waiting=*/2);
  EXPECT_EQ(lines.size(), size_t{6});
  EXPECT(lines[5].seq == SeqId{6} && std::string(lines[5].state) == "waiting");
  EXPECT_EQ(run.scheduler.describe(0).size(), size_t{4});
}

TEST(a_scored_prompt_is_computed_whole_and_in_small_chunks) {
  SchedulerConfig limits = config(32);
  limits.prefill_chunk_size = 32;
  Run run(limits);
  run.add(1, prompt(1, 12), 1);
  run.run_dry();
  AddOptions scored;
  scored.scores_prompt = true;
  run.add(2, prompt(1, 12), 1, scored);
  run.add(3, prompt(3, 4), 1);
  EXPECT(row_sizes(*run.step()) == Tokens{8});
  EXPECT(seqs(*run.step()) == (Ids{2, 3}));
  EXPECT_EQ(run.scheduler.stats().prefix_query_tokens, 16);
}

TEST(a_request_as_large_as_the_cache_runs_alone) {
  Run run(config(4));
  run.add(1, prompt(1, 1), 2);
  run.add(2, prompt(2, 9), 8);  // at most 16 tokens of KV, the whole cache
  run.add(3, prompt(3, 16), 1);
  run.run_dry();
  EXPECT_EQ(run.got[SeqId{2}].size(), size_t{8});
  EXPECT_EQ(run.got[SeqId{3}].size(), size_t{1});
}

TEST(a_request_larger_than_the_cache_is_rejected_immediately) {
  Run run(config(4));
  EXPECT_THROWS(run.add(1, prompt(1, 10), 8), std::invalid_argument);
  EXPECT_THROWS(run.add(1, prompt(1, 17), 1), std::invalid_argument);
  EXPECT_THROWS(run.add(1, prompt(1, 1), std::numeric_limits<int64_t>::max()), std::invalid_argument);
  EXPECT_THROWS(run.add(1, prompt(1, 1), 0), std::invalid_argument);
  EXPECT_THROWS(run.add(1, {}, 1), std::invalid_argument);
  run.add(1, prompt(1, 10), 7);
  EXPECT_THROWS(run.add(1, prompt(1, 1), 1), std::invalid_argument);
}

TEST(a_stop_token_ends_a_request_in_the_step_that_made_it) {
  Run run(config(8));
  run.next_token = [&](SeqId seq) { return run.got[seq].size() == 2 ? kStopToken : 1; };
  run.add(1, prompt(1, 4), 9);
  run.run_dry();
  EXPECT(run.got[SeqId{1}] == (Tokens{1, 1, kStopToken}));
  EXPECT(run.finished[SeqId{1}] == Finish::kStop);
}

TEST(a_stop_token_has_no_effect_before_min_tokens) {
  Run run(config(8));
  run.next_token = [](SeqId) { return kStopToken; };
  run.add(1, prompt(1, 4), 9, options(/*min_tokens=*/3));
  run.run_dry();
  EXPECT_EQ(run.got[SeqId{1}].size(), size_t{3});
}

TEST(a_stop_token_at_the_length_limit_counts_as_a_stop) {
  Run run(config(8));
  run.next_token = [](SeqId) { return kStopToken; };
  run.add(1, prompt(1, 4), 1);
  run.run_dry();
  EXPECT(run.finished[SeqId{1}] == Finish::kStop);
}

TEST(no_stop_token_counts_when_min_tokens_is_above_max_tokens) {
  Run run(config(8));
  run.next_token = [](SeqId) { return kStopToken; };
  run.add(1, prompt(1, 4), 2, options(/*min_tokens=*/3));
  run.run_dry();
  EXPECT(run.finished[SeqId{1}] == Finish::kLength);
}

TEST(an_abort_between_steps_frees_every_block_immediately) {
  Run run(config(16));
  run.add(1, prompt(1, 3), 5);  // decodes
  run.step();
  run.add(2, prompt(2, 20), 5);  // part-way through its prompt
  run.step();
  run.add(3, prompt(3, 3), 5);  // queued
  for (int64_t seq = 1; seq <= 3; ++seq) EXPECT(run.abort(seq));
  EXPECT(!run.abort(1));
  EXPECT_EQ(run.scheduler.stats().used_tokens, 0);
  EXPECT_EQ(run.step()->num_requests(), 0);
}

TEST(an_abort_during_a_step_drops_the_token_and_frees_at_commit) {
  Run run(config(16));
  run.next_token = [](SeqId seq) { return static_cast<int32_t>(seq) * 11; };
  run.add(1, prompt(1, 3), 5);
  run.add(2, prompt(2, 3), 5);
  run.step();
  const auto plan = run.plan();
  EXPECT(run.abort(1));
  EXPECT_EQ(run.scheduler.stats().used_tokens, 8);
  run.commit(*plan);
  EXPECT_EQ(run.scheduler.stats().used_tokens, 4);
  EXPECT(run.got[SeqId{1}] == Tokens{11});
  EXPECT(run.got[SeqId{2}] == (Tokens{22, 22}));
  EXPECT(!run.abort(1));
}

TEST(blocks_of_an_aborted_request_are_published_at_commit) {
  Run run(config(16));
  run.add(1, prompt(1, 8), 5);
  const auto plan = run.plan();
  EXPECT(run.abort(1));
  run.commit(*plan);
  EXPECT_EQ(run.scheduler.stats().cached_tokens, 8);
  run.add(2, prompt(1, 10), 5);
  EXPECT(run.step()->positions == (Tokens{8, 9}));
  EXPECT_EQ(run.scheduler.cached_tokens(SeqId{2}), 8);
}

TEST(a_request_preempted_by_the_plan_can_be_aborted_before_its_commit) {
  Run run(config(4));
  run.add(1, prompt(1, 4), 8);
  run.add(2, prompt(2, 4), 8);
  auto plan = run.plan();
  while (plan->preempted.empty()) {
    run.commit(*plan);
    plan = run.plan();
  }
  EXPECT(run.abort(2));
  EXPECT_EQ(run.scheduler.stats().waiting, 0);
  run.commit(*plan);
  run.run_dry();
  EXPECT_EQ(run.got[SeqId{1}].size(), size_t{8});
}

TEST(a_shared_prefix_is_read_from_the_same_blocks) {
  Run run(config(16));
  run.add(1, prompt(1, 10), 5);
  run.step();
  run.step();
  Tokens same_start = prompt(1, 9);
  same_start.push_back(5);
  run.add(2, same_start, 5);
  const auto plan = run.plan();
  EXPECT(row_sizes(*plan) == (Tokens{1, 2}));
  EXPECT(plan->positions == (Tokens{10, 8, 9}));
  EXPECT(plan->kv_indices[0] == plan->kv_indices[3]);
  EXPECT(plan->kv_indices[1] == plan->kv_indices[4]);
  EXPECT(plan->kv_indices[2] != plan->kv_indices[5]);
  EXPECT_EQ(run.scheduler.cached_tokens(SeqId{2}), 8);
  EXPECT_EQ(run.scheduler.stats().prefix_query_tokens, 20);
  EXPECT_EQ(run.scheduler.stats().prefix_hit_tokens, 8);
}

TEST(a_fully_cached_prompt_recomputes_its_last_block) {
  Run run(config(16));
  run.add(1, prompt(1, 8), 1);
  run.run_dry();
  run.add(2, prompt(1, 8), 1);
  const auto plan = run.step();
  EXPECT(plan->positions == (Tokens{4, 5, 6, 7}));
  EXPECT_EQ(run.scheduler.stats().cached_tokens, 8);  // its content is already known
}

TEST(a_preempted_request_is_served_by_the_cache_and_counted_once) {
  Run run(config(5));
  run.add(1, prompt(1, 5), 12);
  run.add(2, prompt(2, 5), 12);
  std::shared_ptr<Plan> plan;
  bool came_back = false;
  for (bool fell = false; (plan = run.step())->num_requests() > 0;) {
    fell = fell || !plan->preempted.empty();
    // 12 tokens were known when it was preempted; all but one block of them must be found, not computed.
    came_back = came_back || (fell && seqs(*plan) == Ids{2} && plan->positions.front() > 0);
  }
  EXPECT(came_back);
  EXPECT_EQ(run.scheduler.stats().prefix_query_tokens, 10);
  EXPECT_EQ(run.scheduler.stats().prefix_hit_tokens, 0);
}

TEST(without_a_prefix_cache_every_token_is_computed) {
  SchedulerConfig limits = config(16);
  limits.prefix_cache = false;
  Run run(limits);
  for (int64_t seq = 1; seq <= 2; ++seq) {
    run.add(seq, prompt(1, 8), 1);
    EXPECT_EQ(run.step()->num_tokens(), 8);
  }
  EXPECT_EQ(run.scheduler.stats().cached_tokens, 0);
  EXPECT_EQ(run.scheduler.stats().prefix_query_tokens, 0);
}

TEST(plan_and_commit_must_alternate) {
  Run run(config(8));
  EXPECT_THROWS(run.scheduler.commit({}), std::logic_error);
  run.add(1, prompt(1, 4), 3);
  run.plan();
  EXPECT_THROWS(run.scheduler.plan(), std::logic_error);
  EXPECT_THROWS(run.scheduler.commit({}), std::invalid_argument);
  EXPECT_THROWS(run.scheduler.commit({1, 2}), std::invalid_argument);
  run.scheduler.commit({1});
  EXPECT_THROWS(run.scheduler.commit({1}), std::logic_error);
}

TEST(the_next_plan_and_its_blocks_are_predicted_if_no_request_arrives_or_ends) {
  Run run(config(16));
  run.add(1, prompt(1, 3), 4);
  run.add(2, prompt(2, 2), 9);
  EXPECT(!run.scheduler.plan_ahead());
  const auto prefill = run.plan();
  EXPECT(!run.scheduler.plan_ahead());
  run.commit(*prefill);
  auto plan = run.plan();
  const auto predicted = run.scheduler.plan_ahead();
  run.scheduler.check();
  EXPECT(predicted && !run.scheduler.plan_ahead());
  EXPECT_EQ(run.scheduler.stats().used_tokens, 12);  // the first request's fifth token has its block
  run.commit(*plan);
  plan = run.plan();
  EXPECT(plan->was_predicted);
  EXPECT(plan->slots == predicted->slots && plan->kv_indices == predicted->kv_indices);
  EXPECT(plan->token_ids == (Tokens{2, 2}) && predicted->token_ids == (Tokens{0, 0}));
  EXPECT(run.scheduler.plan_ahead() != nullptr);
  EXPECT(run.abort(2));
  run.commit(*plan);
  plan = run.plan();
  EXPECT(!plan->was_predicted && seqs(*plan) == Ids{1});
  EXPECT(!run.scheduler.plan_ahead());  // it ends by its length
  run.commit(*plan);
  run.run_dry();
  EXPECT_EQ(run.scheduler.stats().used_tokens, 0);
}

TEST(planning_ahead_preempts_no_request) {
  Run run(config(4));
  run.add(1, prompt(1, 4), 8);
  run.add(2, prompt(2, 4), 8);
  run.step();
  run.step();
  bool was_planned = true;
  for (auto plan = run.plan(); plan->preempted.empty(); plan = run.plan()) {
    was_planned = run.scheduler.plan_ahead() != nullptr;
    run.scheduler.check();
    run.commit(*plan);
  }
  EXPECT(!was_planned);
}

TEST(a_decode_row_computes_its_draft_tokens_and_has_logits_for_each_token) {
  Run run(config(8));
  run.add(1, prompt(1, 3), 8);
  run.add(2, prompt(2, 2), 8);
  run.step();
  run.propose(1, {2, 3});
  const auto plan = run.plan();
  EXPECT(row_sizes(*plan) == (Tokens{3, 1}) && plan->num_decode == 2);
  EXPECT(plan->token_ids == (Tokens{1, 2, 3, 1}) && plan->positions == (Tokens{3, 4, 5, 2}));
  EXPECT(plan->kv_lens == (Tokens{6, 3}) && plan->samples == (Tokens{3, 1}));
  EXPECT(plan->logits_at == (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(plan->num_samples(), 4);
  EXPECT_THROWS(run.scheduler.commit({2, 3}), std::invalid_argument);
  EXPECT(!run.scheduler.plan_ahead());  // the number of accepted draft tokens is not known yet
  run.commit({2, 3, 4, 2});
  EXPECT(run.got[SeqId{1}] == (Tokens{1, 2, 3, 4}) && run.got[SeqId{2}] == (Tokens{1, 2}));
  const auto next = run.step();
  EXPECT(next->token_ids == (Tokens{4, 2}) && next->positions == (Tokens{6, 3}));
  run.run_dry();
  EXPECT_EQ(run.got[SeqId{1}].size(), 8u);
  EXPECT_EQ(run.scheduler.stats().used_tokens, 0);
}

TEST(logits_of_a_prompt_chunk_follow_those_of_draft_tokens) {
  Run run(config(8, 4, 12));
  run.add(1, prompt(1, 3), 8);
  run.step();
  run.propose(1, {2, 3});
  run.add(2, prompt(2, 4), 8);
  const auto plan = run.plan();
  EXPECT(row_sizes(*plan) == (Tokens{3, 4}) && plan->samples == (Tokens{3, 1}));
  EXPECT(plan->logits_at == (std::vector<int64_t>{0, 1, 2, 6}));
}

TEST(a_wrong_draft_token_ends_the_added_tokens_and_releases_their_blocks) {
  Run run(config(8));
  run.add(1, prompt(1, 3), 12);
  run.step();
  EXPECT_EQ(run.scheduler.stats().used_tokens, 4);
  run.propose(1, {2, 9, 4, 5});
  EXPECT_EQ(run.plan()->num_tokens(), 5);
  EXPECT_EQ(run.scheduler.stats().used_tokens, 8);
  run.commit({7, 3, 4, 5, 6});  // the first draft token is already wrong
  EXPECT(run.got[SeqId{1}] == (Tokens{1, 7}));
  EXPECT_EQ(run.scheduler.stats().used_tokens, 8);  // the second block holds the next token
  run.propose(1, {3, 9, 5, 6});
  EXPECT(run.plan()->positions == (Tokens{4, 5, 6, 7, 8}));
  EXPECT_EQ(run.scheduler.stats().used_tokens, 12);
  run.commit({3, 4, 5, 6, 7});  // the second draft token is wrong
  EXPECT(run.got[SeqId{1}] == (Tokens{1, 7, 3, 4}));
  EXPECT_EQ(run.scheduler.stats().used_tokens, 8);
  const auto next = run.plan();
  EXPECT(next->token_ids == Tokens{4} && next->positions == Tokens{6});
  run.commit(*next);
  run.run_dry();
  EXPECT_EQ(run.got[SeqId{1}].size(), 12u);
  EXPECT_EQ(run.scheduler.stats().used_tokens, 0);
}

TEST(only_the_kv_of_right_draft_tokens_is_published) {
  Run run(config(16));
  run.add(1, {1, 2, 3}, 8);
  run.step();  // samples 1
  run.propose(1, {5, 6, 7, 8});
  run.plan();
  run.commit({5, 9, 0, 0, 0});  // the first block is full, the second one holds 5 and wrong tokens
  run.scheduler.abort(SeqId{1});
  run.add(2, {1, 2, 3, 1, 5, 6, 7, 8, 4}, 1);
  EXPECT(run.step()->positions == (Tokens{4, 5, 6, 7, 8}));
}

TEST(a_stop_token_or_the_length_ends_a_row_among_its_draft_tokens) {
  Run run(config(8));
  run.add(1, prompt(1, 3), 8);
  run.add(2, prompt(2, 3), 4);
  run.step();
  run.propose(1, {kStopToken, 3});
  run.propose(2, {2, 3, 4, 5});
  EXPECT(row_sizes(*run.plan()) == (Tokens{3, 3}));  // the second one samples its last token after two
  run.commit({kStopToken, 3, 4, 2, 3, 4});
  EXPECT(run.got[SeqId{1}] == (Tokens{1, kStopToken}) && run.finished[SeqId{1}] == Finish::kStop);
  EXPECT(run.got[SeqId{2}] == (Tokens{1, 2, 3, 4}) && run.finished[SeqId{2}] == Finish::kLength);
  EXPECT_EQ(run.scheduler.stats().used_tokens, 0);
}

TEST(draft_tokens_preempt_no_request) {
  Run run(config(4, 4, 12));
  run.add(1, prompt(1, 4), 9);
  run.add(2, prompt(2, 3), 4);
  run.step();
  run.propose(1, {2, 3, 4, 5});
  run.propose(2, {2, 3});
  const auto plan = run.plan();  // the first request's draft tokens use the last block
  EXPECT(row_sizes(*plan) == (Tokens{5, 1}) && plan->preempted.empty());
  EXPECT_EQ(run.scheduler.stats().used_tokens, 16);
}

TEST(draft_tokens_leave_each_slot_a_token_of_the_step) {
  Run run(config(32, 4, 6));  // 4 slots
  run.add(1, prompt(1, 2), 12);
  run.add(2, prompt(2, 2), 12);
  run.step();
  run.add(3, prompt(3, 9), 2);
  run.propose(1, {2});
  run.propose(2, {2, 3, 4});
  const auto plan = run.plan();
  EXPECT(row_sizes(*plan) == (Tokens{2, 2, 2}));
}

TEST(a_preempted_request_loses_its_draft_tokens) {
  Run run(config(3));
  run.add(1, prompt(1, 4), 9);
  run.add(2, prompt(2, 3), 9);
  run.step();
  run.step();  // the first request uses the third block
  run.propose(2, {3, 4});
  const auto plan = run.plan();
  EXPECT(row_sizes(*plan) == Tokens{1} && plan->preempted == std::vector<SeqId>{SeqId{2}});
  run.commit(*plan);
  run.run_dry();
  EXPECT_EQ(run.got[SeqId{2}].size(), 9u);
  EXPECT_EQ(run.scheduler.stats().used_tokens, 0);
}

TEST(a_failed_row_adds_none_of_its_draft_tokens) {
  Run run(config(8));
  run.add(1, prompt(1, 3), 8);
  run.add(2, prompt(2, 3), 8);
  run.step();
  run.propose(1, {2, 3});
  run.plan();
  run.scheduler.fail(SeqId{1}, false);
  run.commit({2, 3, 4, 2});
  EXPECT(run.got[SeqId{1}] == Tokens{1} && run.got[SeqId{2}] == (Tokens{1, 2}));
  EXPECT_EQ(run.scheduler.stats().used_tokens, 4);
}

TEST(draft_tokens_are_only_for_a_sequence_that_decodes_next) {
  Run run(config(8));
  EXPECT_THROWS(run.scheduler.propose(SeqId{1}, {2}), std::invalid_argument);
  run.add(1, prompt(1, 3), 8);
  EXPECT_THROWS(run.scheduler.propose(SeqId{1}, {2}), std::invalid_argument);
  run.step();
  run.propose(1, {2});
  run.propose(1, {});  // withdraws them
  EXPECT(row_sizes(*run.plan()) == Tokens{1});
  EXPECT_THROWS(run.scheduler.propose(SeqId{1}, {3}), std::invalid_argument);
}

TEST(impossible_limits_are_rejected) {
  const auto refuses = [](int32_t SchedulerConfig::* field, int32_t value) {
    SchedulerConfig limits = config(8);
    limits.*field = value;
    EXPECT_THROWS(limits.validate(), std::invalid_argument);
  };
  refuses(&SchedulerConfig::num_blocks, 0);
  refuses(&SchedulerConfig::num_blocks, std::numeric_limits<int32_t>::max());
  refuses(&SchedulerConfig::block_tokens, 0);
  refuses(&SchedulerConfig::max_batch_size, 0);
  refuses(&SchedulerConfig::chunk_size, 3);  // max_batch_size is 4
  refuses(&SchedulerConfig::prefill_chunk_size, 0);
}
