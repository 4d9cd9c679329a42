#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <numeric>
#include <random>

#include "base/check.h"
#include "check.h"
#include "kv/tier.h"
#include "sched/scheduler.h"

using namespace ballast;

namespace {

std::vector<int32_t> tokens(int32_t count, int32_t first = 0) {
  std::vector<int32_t> all(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) all[static_cast<size_t>(i)] = first + i;
  return all;
}

SchedulerConfig config_of(std::vector<TierConfig> tiers, int32_t num_blocks = 16, int32_t num_slots = 6) {
  SchedulerConfig config{num_blocks, 4, 2, 8, 16, true};
  config.states.num_slots = num_slots;
  config.tiers = std::move(tiers);
  return config;
}

// A scheduler, and its pending transfers to tiers.
struct Server {
  explicit Server(const SchedulerConfig& config)
      : scheduler(config), num_blocks(config.tiers.size()), num_states(config.tiers.size()) {}

  void take() {
    for (const Transfer& each : scheduler.take_transfers()) {
      const auto tier = static_cast<size_t>(each.tier);
      if (each.move == Move::kStore) ++num_blocks[tier];
      if (each.move == Move::kFetch) ++fetches[each.seq];
      if (each.move != Move::kStoreState) continue;
      EXPECT(each.tier_state != kNullSlot && each.state != kNullSlot);
      ++num_states[tier];
      ++num_states_sent;
    }
  }
  void store_all() {
    for (size_t tier = 0; tier < num_blocks.size(); ++tier) {
      for (; num_blocks[tier] > 0 || num_states[tier] > 0; take()) {
        if (num_blocks[tier] > 0) {
          --num_blocks[tier];
          scheduler.stored(static_cast<int32_t>(tier), true);
        } else {
          --num_states[tier];
          scheduler.stored_state(static_cast<int32_t>(tier), true);
        }
      }
    }
  }
  // Runs a request alone; returns its number of cached or fetched prompt tokens.
  int32_t serve(int64_t seq, const std::vector<int32_t>& prompt, const AddOptions& options = {}) {
    scheduler.add(SeqId{seq}, prompt, 2, {}, options);
    int32_t num_cached = 0;
    for (;;) {
      const auto plan = scheduler.plan();
      take();
      if (!fetches.empty()) {
        const auto [of, count] = *fetches.begin();
        fetches.clear();
        scheduler.fetched(of, fetches_fail ? 0 : count, Damage::kNone);
        ++num_fetches;
        continue;
      }
      if (plan->num_requests() == 0) return num_cached;
      num_cached = scheduler.cached_tokens(SeqId{seq});
      scheduler.commit(std::vector<int32_t>(plan->logits_at.size(), 7));
      take();
      scheduler.check();
    }
  }

  // Aborts a request when it has fetched its prefix.
  void abort_after_fetch(int64_t seq, const std::vector<int32_t>& prompt) {
    scheduler.add(SeqId{seq}, prompt, 2, {});
    scheduler.plan();
    take();
    EXPECT(fetches.size() == 1);
    scheduler.fetched(SeqId{seq}, fetches[SeqId{seq}], Damage::kNone);
    fetches.clear();
    scheduler.abort(SeqId{seq});
    scheduler.check();
  }

  Scheduler scheduler;
  std::vector<int32_t> num_blocks, num_states;  // by tier
  std::map<SeqId, int32_t> fetches;
  int32_t num_fetches = 0, num_states_sent = 0;
  bool fetches_fail = false;
};

}  // namespace

TEST(a_state_is_known_when_it_has_arrived) {
  Tier tier({4, 4, 2, 1}, 2);
  std::vector<BlockId> table;
  bool is_sent = false;
  EXPECT(tier.extend(table, {1, 2, 3, 4}, kNoSalt, is_sent) &&
         tier.extend(table, {1, 2, 3, 4}, kNoSalt, is_sent));
  const StateSlot state = tier.send_state(table[1]);
  EXPECT(state != kNullSlot && tier.state_of(table[1]) == kNullSlot && tier.has_or_gets_state(table[1]));
  EXPECT(tier.is_busy_with_states() && tier.send_state(table[0]) == kNullSlot);
  tier.state_arrives(true);
  EXPECT(tier.state_of(table[1]) == state && !tier.has_or_gets_state(table[0]));
  // The state used last remains.
  EXPECT(tier.send_state(table[0]) != kNullSlot);
  tier.state_arrives(true);
  tier.hold_state(state);
  tier.release_state(state);
  tier.release(table);
  tier.check(std::vector<int32_t>(5));
}

TEST(a_lost_state_is_not_served_and_ends_all_stores) {
  Tier tier({4, 4, 2, 1}, 2);
  std::vector<BlockId> table;
  bool is_sent = false;
  tier.extend(table, {1, 2}, kNoSalt, is_sent);
  tier.send_state(table[0]);
  tier.state_arrives(false);
  EXPECT(!tier.has_or_gets_state(table[0]) && tier.send_state(table[0]) == kNullSlot);
  EXPECT(!tier.is_busy_with_states());
}

TEST(a_state_of_a_hidden_block_is_given_back) {
  Tier tier({4, 4, 2, 2}, 2);
  std::vector<BlockId> table;
  bool is_sent = false;
  tier.extend(table, {1, 2}, kNoSalt, is_sent);
  tier.send_state(table[0]);
  tier.hide(table[0]);
  tier.state_arrives(true);
  EXPECT(tier.state_of(table[0]) == kNullSlot);
  tier.release(table);
  tier.check(std::vector<int32_t>(5), std::vector<int32_t>(3));
}

TEST(a_tier_keeps_states_for_the_same_use_as_the_cache) {
  Tier tier({4, 4, 2, 2}, 1);
  std::vector<BlockId> table;
  bool is_sent = false;
  for (int i = 0; i < 3; ++i) tier.extend(table, {1, 2, 3}, kNoSalt, is_sent);
  const SnapshotUse reply{7, kAfterReply, /*goes_first=*/false, {}};
  tier.send_state(table[0], reply);
  tier.send_state(table[1], reply);
  // One has another use, and one goes first, while they are on their way.
  tier.use_state(table[0], {8, kAfterUser, /*goes_first=*/false, {}});
  tier.change_uses(7, [](SnapshotUse& use) { use.goes_first = true; });
  tier.state_arrives(true);
  tier.state_arrives(true);
  EXPECT(tier.use_of_state(table[0]).request == 8 && tier.use_of_state(table[1]).goes_first);
  tier.send_state(table[2], reply);
  EXPECT(tier.state_of(table[0]) != kNullSlot && tier.state_of(table[1]) == kNullSlot);
  tier.state_arrives(true);
  tier.change_uses(8, [](SnapshotUse& use) { use.goes_first = true; });
  tier.send_state(table[1], reply);
  EXPECT(tier.state_of(table[0]) == kNullSlot && tier.state_of(table[2]) != kNullSlot);
  tier.state_arrives(true);
  tier.release(table);
  tier.check(std::vector<int32_t>(5));
}

TEST(states_are_restored_with_their_blocks) {
  Tier tier({4, 4, 2, 1}, 1);
  const std::vector<BlockId> blocks{BlockId{2}, BlockId{1}}, parents{BlockId{1}, kNullBlock};
  const std::vector<Salt> salts(2);
  for (const std::vector<StateSlot>& wrong :
       {std::vector<StateSlot>{StateSlot{3}, kNullSlot}, {StateSlot{1}, StateSlot{1}}, {StateSlot{1}}}) {
    EXPECT_THROWS(tier.restore(blocks, parents, {6, 5}, salts, {}, wrong), std::invalid_argument);
  }
  tier.restore(blocks, parents, {6, 5}, salts, {}, {StateSlot{2}, kNullSlot});
  EXPECT(tier.state_of(BlockId{2}) == StateSlot{2} && tier.state_of(BlockId{1}) == kNullSlot);
  // It is an end of some request, which nothing else is of.
  EXPECT(tier.use_of_state(BlockId{2}).is_end() && tier.use_of_state(BlockId{2}).request < 0);
  tier.check(std::vector<int32_t>(5));
}

TEST(a_tier_takes_every_snapshot_or_those_at_rest) {
  for (const bool at_rest : {false, true}) {
    Server server(config_of({{100, 100, 40, 2, at_rest}}));
    server.serve(1, tokens(22));
    server.store_all();
    EXPECT((server.num_states_sent == 0) == at_rest);
    server.scheduler.rest();
    server.take();
    server.store_all();
    EXPECT(server.num_states_sent > 0);
    // Other requests use the cache.
    for (int64_t seq = 2; seq < 8; ++seq) server.serve(seq, tokens(40, 1000 * static_cast<int32_t>(seq)));
    EXPECT(server.serve(9, tokens(22)) == 20 && server.num_fetches == 1);
  }
}

TEST(blocks_of_a_tier_without_their_state_count_as_cut) {
  Server server(config_of({{100, 100}}));
  const auto stats = [&] { return server.scheduler.stats(); };
  server.serve(1, tokens(22));
  server.store_all();
  EXPECT(stats().snapshots_evicted == 0 && stats().state_slots == 6);
  for (int64_t seq = 2; seq < 9; ++seq) server.serve(seq, tokens(5, 1000 * static_cast<int32_t>(seq)));
  EXPECT(stats().snapshots_evicted > 0);
  server.serve(9, tokens(62, 9000));  // takes the whole cache
  EXPECT(stats().prefix_cut_tokens == 0);
  EXPECT(server.serve(10, tokens(22)) == 0 && server.num_fetches == 0);
  EXPECT(stats().prefix_cut_tokens == 20);
}

TEST(a_conversation_that_continues_is_not_at_rest) {
  Server server(config_of({{60, 60, 8, 2, true}}, 40, 20));
  AddOptions options;
  options.snapshots_at = {12};
  server.serve(1, tokens(22), options);
  std::vector<int32_t> next = tokens(22);
  next.insert(next.end(), {7, 5, 5, 5, 5, 5, 5});
  EXPECT(server.serve(2, next) == 20);
  server.store_all();
  server.scheduler.rest();
  server.take();
  EXPECT(server.num_states_sent == 1);  // the state at the second request's end
  server.store_all();
  // Others finish until the first one counts as being at rest: later ends take a fourth of the slots.
  const int32_t before = server.num_states_sent;
  int32_t num_others = 0;
  for (; server.num_states_sent == before; server.store_all()) {
    ++num_others;
    server.serve(100 + num_others, tokens(5, 1000 * num_others));
    EXPECT(num_others < 40);
  }
  EXPECT(num_others == 6);
}

TEST(ends_of_one_conversation_alone_do_not_make_it_rest) {
  // One request at a time has 8 slots by default, and leaves a snapshot at three ends.
  Server server(config_of({{60, 60, 8, 2, true}}, 40, 8));
  AddOptions options;
  options.snapshots_at = {8, 10, 20};  // the first two end in one block
  server.serve(1, tokens(30), options);
  server.store_all();
  EXPECT(server.scheduler.stats().snapshots >= 3 && server.num_states_sent == 0);
  server.serve(2, tokens(30, 1000), options);
  server.store_all();
  EXPECT(server.num_states_sent >= 3);
}

TEST(an_idle_server_stores_the_states_of_all_conversations) {
  constexpr int32_t kConversations = 150;
  Server server(config_of({{600, 600, 600, 2, true}}, 600, 1000));
  for (int32_t seq = 1; seq <= kConversations; ++seq) server.serve(seq, tokens(5, 10 * seq));
  server.store_all();
  EXPECT(server.num_states_sent == 0);
  server.scheduler.rest();
  server.take();
  server.store_all();
  EXPECT(server.num_states_sent == kConversations && server.scheduler.stats().unsent == 0);
}

TEST(a_tier_keeps_the_states_of_a_conversation_while_another_one_continues) {
  // The cache has no room for both conversations, and the tier for the states of a few turns.
  Server server(config_of({{100, 100, 5, 2}}, 24, 12));
  std::vector<int32_t> said = tokens(22, 1000);
  server.serve(1, tokens(22));
  server.store_all();
  for (int64_t seq = 2; seq < 9; ++seq) {
    EXPECT(server.serve(seq, said) > 0 || seq == 2);
    server.store_all();
    said.insert(said.end(), {7, 7, 5, 5, 5, 5, 5, 5, 5});
  }
  EXPECT(server.num_states_sent > 10 && server.num_fetches == 0);
  EXPECT(server.serve(9, tokens(22)) == 20 && server.num_fetches == 1);
}

TEST(a_tier_keeps_the_state_at_the_question_while_an_agent_takes_steps) {
  Server server(config_of({{100, 100, 5, 2}}, 40, 12));
  std::vector<int32_t> said = tokens(23);
  AddOptions options;
  options.snapshots_at = {20};
  for (int64_t seq = 1; seq < 7; ++seq) {
    EXPECT(server.serve(seq, said, options) == (seq == 1 ? 0 : static_cast<int32_t>(said.size()) - 11));
    server.store_all();
    said.insert(said.end(), {7, 7, 5, 5, 5, 5, 5, 5, 5, static_cast<int32_t>(seq)});
    said.insert(said.end(), {9, 9});
    options.snapshots_at = {20, static_cast<int32_t>(said.size())};
  }
  EXPECT(server.num_states_sent > 10 && server.num_fetches == 0);
  server.serve(7, tokens(150, 1000));  // takes the whole cache
  server.store_all();
  std::vector<int32_t> next = tokens(20);
  next.insert(next.end(), 20, 800);
  EXPECT(server.serve(8, next) == 20 && server.num_fetches == 1);
}

TEST(a_conversation_continues_after_a_failed_fetch) {
  Server server(config_of({{300, 300, 40, 2}}, 40, 12));
  std::vector<int32_t> said = tokens(22);
  for (int64_t seq = 1; seq < 9; ++seq) {
    server.fetches_fail = seq % 3 == 0;
    const int32_t num_fetches = server.num_fetches;
    const int32_t num_cached = server.serve(seq, said);
    if (seq == 1 || server.fetches_fail)
      EXPECT(num_cached < 10);
    else
      EXPECT(num_cached == static_cast<int32_t>(said.size()) - 10);
    EXPECT((server.num_fetches > num_fetches) == server.fetches_fail);
    server.store_all();
    said.insert(said.end(), {7, 7, 5, 5, 5, 5, 5, 5});
    if (seq % 3 == 2) {
      server.fetches_fail = false;
      server.serve(100 + seq, tokens(150, 5000));  // takes the whole cache
      server.store_all();
    }
  }
}

// Every turn begins at a state that was fetched, and that of the turn before goes first.
TEST(a_fetched_state_remains_the_end_of_its_conversation) {
  for (const bool aborts : {false, true}) {
    Server server(config_of({{300, 300, 5, 2}}, 40, 12));
    server.serve(1, tokens(22));
    server.store_all();
    std::vector<int32_t> said = tokens(22, 1000);
    for (int64_t seq = 10; seq < 80; seq += 10) {
      if (aborts && seq > 10) server.abort_after_fetch(seq, said);
      EXPECT(server.serve(seq + 1, said) > 0 || seq == 10);
      server.store_all();
      said.insert(said.end(), {7, 7, 5, 5, 5, 5, 5, 5, 5});
      server.serve(seq + 2, tokens(150, 5000));  // takes the whole cache
      server.store_all();
    }
    EXPECT(server.num_fetches >= (aborts ? 6 : 12));
    EXPECT(server.serve(2, tokens(22)) == 20);
  }
}

TEST(a_fetch_without_its_state_is_not_used) {
  Server server(config_of({{100, 100, 0, 0}}));
  server.serve(1, tokens(22));
  server.store_all();
  for (int64_t seq = 2; seq < 8; ++seq) server.serve(seq, tokens(40, 1000 * static_cast<int32_t>(seq)));
  EXPECT(server.serve(9, tokens(22)) == 0 && server.num_fetches == 0);
}

TEST(blocks_that_arrive_without_the_state_do_not_count_as_fetched) {
  Server server(config_of({{100, 100, 40, 2}}));
  server.serve(1, tokens(22));
  server.store_all();
  for (int64_t seq = 2; seq < 8; ++seq) server.serve(seq, tokens(40, 1000 * static_cast<int32_t>(seq)));
  server.scheduler.add(SeqId{9}, tokens(22), 2, {});
  server.scheduler.plan();
  server.take();
  EXPECT(server.fetches.size() == 1 && server.fetches[SeqId{9}] > 1);
  server.scheduler.fetched(SeqId{9}, server.fetches[SeqId{9}] - 1, Damage::kNone);
  EXPECT(server.scheduler.stats().tiers[0].fetched_tokens == 0);
}

TEST(what_is_still_to_come_alone_counts_when_a_fetch_is_reconsidered) {
  SchedulerConfig config = config_of({{100, 100, 40, 2}});
  config.decode_costs = CostCurve("decode_costs", {{1, 1.0}, {16, 16.0}});  // one token per second
  Server server(config);
  server.serve(1, tokens(22));
  server.store_all();
  for (int64_t seq = 2; seq < 8; ++seq) server.serve(seq, tokens(40, 1000 * static_cast<int32_t>(seq)));
  server.scheduler.add(SeqId{9}, tokens(22), 2, {});
  server.scheduler.plan();
  server.take();
  EXPECT(server.fetches[SeqId{9}] == 5 && server.scheduler.is_worth_fetching(SeqId{9}));
  server.scheduler.measured(0, 4.5);
  EXPECT(!server.scheduler.is_worth_fetching(SeqId{9}));
  server.scheduler.coming(SeqId{9}, 0, 4);
  EXPECT(server.scheduler.is_worth_fetching(SeqId{9}));
  server.scheduler.measured(0, 6.0);
  EXPECT(!server.scheduler.is_worth_fetching(SeqId{9}));
  server.scheduler.coming(SeqId{9}, 0, 1);
  EXPECT(server.scheduler.is_worth_fetching(SeqId{9}));
  server.scheduler.check();
}

TEST(blocks_before_those_with_the_state_are_not_worth_fetching_alone) {
  SchedulerConfig config = config_of({{100, 100, 40, 2}, {100, 100, 40, 2, true}});
  config.decode_costs = CostCurve("decode_costs", {{1, 1.0}, {16, 16.0}});  // one token per second
  Server server(config);
  // The first tier has two blocks; the second one has five, with the state after them.
  const std::vector<BlockId> ids{BlockId{5}, BlockId{4}, BlockId{3}, BlockId{2}, BlockId{1}, kNullBlock};
  const std::vector<int32_t> all = tokens(22);
  for (const int32_t tier : {0, 1}) {
    const std::vector<BlockId> blocks(ids.end() - (tier == 0 ? 3 : 6), ids.end() - 1);
    const std::vector<BlockId> parents(ids.end() - static_cast<std::ptrdiff_t>(blocks.size()), ids.end());
    std::vector<int32_t> content;
    for (const BlockId block : blocks) {
      const auto begin = all.begin() + (static_cast<int32_t>(block) - 1) * 4;
      content.insert(content.end(), begin, begin + 4);
    }
    std::vector<StateSlot> states(blocks.size(), kNullSlot);
    if (tier == 1) states.front() = StateSlot{1};
    server.scheduler.restore(tier, blocks, parents, content, std::vector<Salt>(blocks.size()), {}, states);
  }
  server.scheduler.measured(0, 0.1);
  server.scheduler.measured(1, 5.0);
  // 15 s for three blocks, and two tokens; computing what the first tier lacks would take 14 s, but its
  // blocks are of no use without a state.
  server.scheduler.add(SeqId{9}, all, 2, {});
  server.scheduler.plan();
  server.take();
  EXPECT(server.fetches[SeqId{9}] == 5);
  server.scheduler.coming(SeqId{9}, 0, 0);
  EXPECT(server.scheduler.is_worth_fetching(SeqId{9}));
  server.scheduler.measured(1, 7.0);
  EXPECT(!server.scheduler.is_worth_fetching(SeqId{9}));
  server.scheduler.measured(1, 5.0);
  server.scheduler.fetched(SeqId{9}, 5, Damage::kNone);
  EXPECT(server.scheduler.cached_tokens(SeqId{9}) == 20);
  server.scheduler.check();
}

TEST(a_damaged_state_is_dropped_without_its_block) {
  Server server(config_of({{100, 100, 40, 2}}));
  AddOptions options;
  options.snapshots_at = {12};
  server.serve(1, tokens(22), options);
  server.store_all();
  for (int64_t seq = 2; seq < 8; ++seq) server.serve(seq, tokens(40, 1000 * static_cast<int32_t>(seq)));
  server.store_all();
  server.scheduler.add(SeqId{9}, tokens(22), 2, {});
  server.scheduler.plan();
  server.take();
  EXPECT(server.fetches[SeqId{9}] == 5);
  server.fetches.clear();
  EXPECT_THROWS(server.scheduler.fetched(SeqId{9}, 3, Damage::kState), std::invalid_argument);
  const TierStats before = server.scheduler.stats().tiers[0];
  server.scheduler.abort(SeqId{9});
  server.scheduler.fetched(SeqId{9}, 4, Damage::kState);
  const TierStats after = server.scheduler.stats().tiers[0];
  EXPECT(after.states == before.states - 1 && after.cached_tokens == before.cached_tokens);
  server.take();
  server.scheduler.check();
  // The state before it is whole. The request leaves the other one again, and its blocks are there.
  const int32_t num_states_sent = server.num_states_sent;
  EXPECT(server.serve(10, tokens(22)) == 12 && server.num_fetches == 1);
  EXPECT(std::accumulate(server.num_blocks.begin(), server.num_blocks.end(), 0) == 0);
  server.store_all();
  EXPECT(server.num_states_sent > num_states_sent);
}

TEST(a_state_follows_blocks_that_are_sent_again) {
  Server server(config_of({{300, 300, 100, 4}}, 32, 16));
  server.serve(1, tokens(22));
  server.store_all();
  for (int64_t seq = 2; seq < 5; ++seq) server.serve(seq, tokens(100, 1000 * static_cast<int32_t>(seq)));
  server.store_all();
  // Two requests fetch the same blocks. The second one, whose client disconnects, finds them damaged when the
  // first one already has them.
  for (int64_t seq = 20; seq < 22; ++seq) server.scheduler.add(SeqId{seq}, tokens(22), 8, {});
  server.scheduler.plan();
  server.take();
  EXPECT(server.fetches.size() == 2);
  server.scheduler.fetched(SeqId{20}, server.fetches[SeqId{20}], Damage::kNone);
  server.scheduler.abort(SeqId{21});
  server.scheduler.fetched(SeqId{21}, 0, Damage::kBlock);
  server.fetches.clear();
  for (int step = 0; step < 20; ++step) {
    const auto plan = server.scheduler.plan();
    server.take();
    server.scheduler.commit(std::vector<int32_t>(plan->logits_at.size(), 7));
    server.take();
    server.store_all();
    server.scheduler.check();
  }
  EXPECT(server.scheduler.stats().running == 0);
  for (int64_t seq = 30; seq < 33; ++seq) server.serve(seq, tokens(100, 1000 * static_cast<int32_t>(seq)));
  const int32_t before = server.num_fetches;
  EXPECT(server.serve(50, tokens(22)) == 20 && server.num_fetches == before + 1);
}

// The second prompt takes all blocks of the cache and leaves snapshots, in one step: the tier is too busy to
// take its last blocks, and still has to take the state at the end of the first prompt, whose block is gone.
TEST(a_state_is_not_sent_for_what_its_block_held_before) {
  SchedulerConfig config = config_of({{100, 5, 40, 1}}, 16, 30);
  config.chunk_size = config.prefill_chunk_size = 64;
  Server server(config);
  AddOptions options;
  options.snapshots_at = {12};
  server.serve(1, tokens(22), options);
  EXPECT(server.num_blocks[0] == 5 && server.num_states[0] == 1);
  for (; server.num_blocks[0] > 0; server.take()) {
    --server.num_blocks[0];
    server.scheduler.stored(0, true);
  }
  options.snapshots_at = {48, 52, 56, 60};
  server.serve(2, tokens(62, 1000), options);
  EXPECT(server.num_blocks[0] == 5 && server.num_states_sent == 1);
  server.num_states[0] = 0;
  server.scheduler.stored_state(0, true);
  server.take();
  EXPECT(server.num_states_sent == 1);
  server.store_all();
  EXPECT(server.num_states_sent > 1);
  EXPECT(server.serve(3, tokens(22)) == 12 && server.num_fetches == 1);
}

TEST(a_hundred_thousand_operations_leak_nothing) {
  std::mt19937 random(7);
  const auto below = [&](int32_t end) { return std::uniform_int_distribution<int32_t>(0, end - 1)(random); };
  SchedulerConfig config{24, 4, 4, 8, 16, true};
  config.states.num_slots = least_state_slots(4) + 5;
  config.tiers = {{40, 6, 7, 2}, {60, 8, 5, 1, true}};
  Server server(config);
  Scheduler& scheduler = server.scheduler;
  int64_t num_added = 0, num_fetched = 0, num_damaged_states = 0;
  std::shared_ptr<Plan> plan;
  const auto end_a_fetch = [&](int32_t num_blocks, bool is_damaged) {
    const auto found = std::next(server.fetches.begin(), below(static_cast<int32_t>(server.fetches.size())));
    const auto [seq, count] = *found;
    server.fetches.erase(found);
    const int32_t num_whole = std::min(num_blocks, count);
    const Damage damage = num_whole + 1 == count && below(2) == 0 ? Damage::kState : Damage::kBlock;
    scheduler.fetched(seq, num_whole, is_damaged && num_whole < count ? damage : Damage::kNone);
    num_damaged_states += is_damaged && damage == Damage::kState;
    num_fetched += num_whole == count;
  };
  for (int operation = 0; operation < 100'000; ++operation) {
    const int32_t choice = below(16);
    const auto tier = static_cast<size_t>(below(2));
    if (choice < 3 && scheduler.describe().size() < 12) {
      std::vector<int32_t> prompt = tokens(4 * below(8), below(3) * 1000);
      for (int32_t left = 1 + below(9); left > 0; --left) prompt.push_back(below(3));
      AddOptions options;
      options.snapshots_at = {below(static_cast<int32_t>(prompt.size()) + 1)};
      options.snapshot_before = {2};
      scheduler.add(SeqId{++num_added}, prompt, 1 + below(20), {}, options);
    } else if (choice < 10) {
      if (plan == nullptr) {
        plan = scheduler.plan();
      } else {
        if (below(20) == 0) scheduler.fail(plan->seqs[0], below(2) == 0);
        std::vector<int32_t> sampled(plan->logits_at.size());
        for (int32_t& token : sampled) token = below(3);
        scheduler.commit(sampled);
        plan = nullptr;
      }
      if (plan != nullptr && plan->num_requests() == 0) plan = nullptr;
    } else if (choice < 12 && server.num_blocks[tier] > 0) {
      --server.num_blocks[tier];
      scheduler.stored(static_cast<int32_t>(tier), true);
    } else if (choice == 12 && server.num_states[tier] > 0) {
      --server.num_states[tier];
      scheduler.stored_state(static_cast<int32_t>(tier), true);
    } else if (choice == 13 && !server.fetches.empty()) {
      end_a_fetch(below(4) == 0 ? below(3) : 100, below(2) == 0);
    } else if (choice == 14 && below(8) == 0) {
      scheduler.rest();
    } else if (choice == 15 && num_added > 0) {
      scheduler.abort(SeqId{num_added - below(10)});
    }
    server.take();
    if (operation % 16 == 0) scheduler.check();
  }
  EXPECT(num_added > 5'000 && num_fetched > 200 && server.num_states_sent > 500);
  EXPECT(scheduler.stats().preemptions > 20 && num_damaged_states > 5);
  if (plan != nullptr) scheduler.commit(std::vector<int32_t>(plan->logits_at.size(), 1));
  server.take();
  while (!server.fetches.empty()) end_a_fetch(100, false);
  for (const Description& each : scheduler.describe()) scheduler.abort(each.seq);
  server.store_all();
  scheduler.check();
  EXPECT(scheduler.stats().used_tokens == 0 && scheduler.stats().running == 0 &&
         scheduler.stats().waiting == 0 && scheduler.stats().state_slots_used == 0);
}
