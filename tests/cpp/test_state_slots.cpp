#include <algorithm>
#include <map>
#include <random>

#include "base/check.h"
#include "check.h"
#include "kv/block_manager.h"
#include "kv/state_slots.h"
#include "sched/scheduler.h"

using namespace ballast;

namespace {

BlockId id(int32_t number) { return BlockId{number}; }

std::vector<BlockId> ids(int32_t end) {
  std::vector<BlockId> all;
  for (int32_t number = 1; number <= end; ++number) all.push_back(id(number));
  return all;
}

constexpr SnapshotUse kGoesFirst{1, 0, /*goes_first=*/true, {}};

// Stores a slot that no request holds as the snapshot of a block.
StateSlot snapshot_of(StateSlots& slots, BlockId block, const SnapshotUse& use = {}) {
  const StateSlot slot = slots.take();
  slots.attach(block, slot, use);
  slots.release(slot);
  return slot;
}

SchedulerConfig config_of(int32_t num_slots, int32_t num_blocks = 40) {
  SchedulerConfig config{num_blocks, 4, 2, 8, 16, true};
  config.states.num_slots = num_slots;
  return config;
}

std::vector<int32_t> tokens(int32_t count, int32_t first = 0) {
  std::vector<int32_t> all(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) all[static_cast<size_t>(i)] = first + i;
  return all;
}

// Runs a request alone; returns its number of cached prompt tokens.
int32_t serve(Scheduler& scheduler, int64_t seq, const std::vector<int32_t>& prompt, int32_t max_tokens = 2,
              const AddOptions& options = {}) {
  scheduler.add(SeqId{seq}, prompt, max_tokens, {}, options);
  int32_t num_cached = 0;
  for (;;) {
    const auto plan = scheduler.plan();
    if (plan->num_requests() == 0) return num_cached;
    num_cached = scheduler.cached_tokens(SeqId{seq});
    scheduler.check();
    scheduler.commit(std::vector<int32_t>(plan->logits_at.size(), 7));
    scheduler.check();
  }
}

}  // namespace

TEST(a_request_begins_after_a_block_with_a_snapshot) {
  StateSlots slots(9, {4});
  EXPECT(slots.num_usable(ids(5)) == 0);
  const StateSlot slot = snapshot_of(slots, id(3));
  EXPECT(slots.num_usable(ids(5)) == 3 && slots.num_usable(ids(2)) == 0);
  EXPECT(slots.of(id(3)) == slot && slots.of(id(2)) == kNullSlot);
  slots.drop(id(3));
  EXPECT(slots.num_usable(ids(5)) == 0 && slots.num_snapshots() == 0);
  EXPECT(StateSlots(9, {}).num_usable(ids(5)) == 5);
}

TEST(snapshots_that_go_first_are_evicted_first_and_held_slots_never) {
  StateSlots slots(9, {3});
  snapshot_of(slots, id(1));
  snapshot_of(slots, id(2), kGoesFirst);
  snapshot_of(slots, id(3));
  slots.take();
  EXPECT(slots.of(id(2)) == kNullSlot && slots.of(id(1)) != kNullSlot);
  slots.hold(slots.of(id(1)));
  slots.take();
  EXPECT(slots.of(id(3)) == kNullSlot && slots.of(id(1)) != kNullSlot);
  EXPECT_THROWS(slots.take(), InvariantError);
  EXPECT(slots.num_held() == 3);
}

TEST(snapshots_are_evicted_in_the_order_of_last_use) {
  StateSlots slots(9, {3});
  const StateSlot first = snapshot_of(slots, id(1));
  snapshot_of(slots, id(2));
  slots.hold(first);
  slots.release(first);
  const StateSlot third = slots.take();
  slots.attach(id(1), third, {});  // the block has a snapshot already, which counts as used
  slots.release(third);
  EXPECT(slots.of(id(1)) == first);
  slots.take();
  slots.take();
  EXPECT(slots.of(id(2)) == kNullSlot && slots.of(id(1)) == first);
}

TEST(a_snapshot_is_kept_for_its_most_important_use) {
  StateSlots slots(9, {4});
  const SnapshotUse reply{7, kAfterReply, /*goes_first=*/false, {}};
  snapshot_of(slots, id(1), kGoesFirst);
  snapshot_of(slots, id(2), reply);
  snapshot_of(slots, id(3));
  slots.use(id(1), reply);
  slots.use(id(2), kGoesFirst);  // still an end of a request
  slots.use(id(3), reply);       // still shared
  slots.use(id(1), {7, kAfterUser, /*goes_first=*/false, {}});
  EXPECT(slots.use_of(id(1)).ends == (kAfterUser | kAfterReply) && slots.use_of(id(2)).request == 7);
  EXPECT(slots.use_of(id(3)).is_shared());
  slots.check(std::vector<int32_t>(5));
  slots.change_uses(7, [](SnapshotUse& use) { use.goes_first = (use.ends & kAfterUser) != 0; });
  slots.check(std::vector<int32_t>(5));
  slots.take();  // the free one
  for (const int32_t evicted : {1, 2, 3}) {
    EXPECT(slots.of(id(evicted)) != kNullSlot);
    slots.take();
    EXPECT(slots.of(id(evicted)) == kNullSlot);
  }
}

TEST(only_a_slot_with_one_holder_that_is_no_snapshot_may_be_written) {
  StateSlots slots(9, {3});
  const StateSlot slot = slots.take();
  EXPECT(slots.is_own(slot) && !slots.is_own(kNullSlot));
  slots.hold(slot);
  EXPECT(!slots.is_own(slot));
  slots.release(slot);
  slots.attach(id(1), slot, {});
  EXPECT(!slots.is_own(slot) && slots.is_snapshot(slot));
  slots.drop(id(1));  // the slot stays with its holder
  EXPECT(slots.is_own(slot) && slots.num_held() == 1);
  slots.check({0, 1, 0, 0});
}

TEST(freeing_a_block_releases_its_snapshot) {
  BlockManager blocks(2, 1, true, {}, {2});
  std::vector<BlockId> table{blocks.allocate()};
  blocks.publish(table, 0, {5}, kNoSalt);
  const StateSlot slot = snapshot_of(blocks.states(), table[0]);
  EXPECT(slot != kNullSlot);
  blocks.release(table);
  PrefixMatch match;
  blocks.match({5, 6}, kNoSalt, match);
  EXPECT(match.num_usable == 1);
  blocks.allocate();
  blocks.allocate();
  EXPECT(blocks.states().num_snapshots() == 0);
}

TEST(a_prompt_is_found_again_and_a_reply_is_continued_at_its_end) {
  Scheduler scheduler(config_of(8));
  const std::vector<int32_t> prompt = tokens(22);
  EXPECT(serve(scheduler, 1, prompt, 6) == 0);
  EXPECT(serve(scheduler, 2, prompt) == 20);
  std::vector<int32_t> next = prompt;
  next.insert(next.end(), 6, 7);
  EXPECT(serve(scheduler, 3, next) == 24);
  EXPECT(scheduler.stats().prefix_cut_tokens == 0 && scheduler.stats().snapshots > 0);
}

TEST(a_third_prompt_begins_where_the_first_two_diverge) {
  Scheduler scheduler(config_of(12));
  for (const int64_t seq : {1, 2, 3}) {
    std::vector<int32_t> prompt = tokens(18);
    const std::vector<int32_t> own = tokens(20, 100 * static_cast<int32_t>(seq));
    prompt.insert(prompt.end(), own.begin(), own.end());
    EXPECT(serve(scheduler, seq, prompt) == (seq == 3 ? 16 : 0));
  }
  EXPECT(scheduler.stats().prefix_cut_tokens == 16);
}

TEST(a_later_request_begins_at_a_requested_snapshot) {
  Scheduler scheduler(config_of(12));
  AddOptions options;
  options.snapshots_at = {6, 14};
  EXPECT(serve(scheduler, 1, tokens(30), 2, options) == 0);
  for (const auto& [num_common, num_cached] : {std::pair{15, 12}, {11, 4}, {3, 0}}) {
    std::vector<int32_t> prompt = tokens(num_common);
    prompt.push_back(500 + num_common);
    EXPECT(serve(scheduler, 100 + num_common, prompt) == num_cached);
  }
  for (const std::vector<int32_t>& wrong : {std::vector<int32_t>{8, 4}, {31}, {-1}}) {
    options.snapshots_at = wrong;
    EXPECT_THROWS(scheduler.add(SeqId{9}, tokens(30), 2, {}, options), std::invalid_argument);
  }
}

TEST(snapshots_that_a_request_wants_are_kept_longer) {
  // A request uses two of five slots; three snapshots remain.
  for (const bool wants : {false, true}) {
    SchedulerConfig config{40, 4, 1, 32, 32, true};
    config.states.num_slots = 5;
    Scheduler scheduler(config);
    AddOptions options;
    options.snapshots_at = {8};
    serve(scheduler, 1, tokens(9), 1, options);
    for (int32_t length = 14; length < 40; length += 5) {
      if (!wants) options.snapshots_at = {};
      serve(scheduler, 100 + length, tokens(length), 1, options);
    }
    std::vector<int32_t> prompt = tokens(9);
    prompt.push_back(500);
    EXPECT(serve(scheduler, 2, prompt) == (wants ? 8 : 0));
  }
}

TEST(a_reply_leaves_a_snapshot_before_its_first_opener) {
  for (const bool opens : {false, true}) {
    Scheduler scheduler(config_of(12));
    AddOptions options;
    if (opens) options.snapshot_before = {900, 901};
    scheduler.add(SeqId{1}, tokens(9), 30, {}, options);
    std::vector<int32_t> said = tokens(9);
    for (int32_t position = 9; position < 39; ++position) {
      const auto plan = scheduler.plan();
      EXPECT(plan->num_requests() == 1);
      said.push_back(position == 22 ? 901 : position == 30 ? 900 : 300 + position);
      scheduler.commit({said.back()});
      scheduler.check();
    }
    for (const auto& [num_common, num_cached] : {std::pair{31, 20}, {22, 20}, {19, 8}}) {
      std::vector<int32_t> prompt(said.begin(), said.begin() + num_common);
      prompt.push_back(500 + num_common);
      EXPECT(serve(scheduler, 100 + num_common, prompt, 1) == (opens ? num_cached : 8));
      if (!opens) break;  // it leaves a snapshot where the prompts diverge
    }
  }
}

TEST(steps_write_to_another_slot_while_the_old_state_is_kept) {
  Scheduler scheduler(config_of(8));
  scheduler.add(SeqId{1}, tokens(9), 12, {});
  auto plan = scheduler.plan();
  EXPECT(plan->states_in == std::vector<StateSlot>{kNullSlot} && plan->states_out[0] != kNullSlot);
  EXPECT(plan->save_ends == std::vector<int32_t>{8} && plan->save_indptr == (std::vector<int32_t>{0, 1}));
  EXPECT(plan->save_slots[0] != plan->states_out[0]);
  for (int32_t position = 9; position < 18; ++position) {
    const StateSlot last = plan->states_out[0];
    scheduler.commit({7});
    plan = scheduler.plan();
    EXPECT(plan->states_in[0] == last && plan->save_ends.empty());
    EXPECT((plan->states_out[0] != last) == (position % 4 == 0));
    scheduler.check();
  }
}

TEST(the_minimum_number_of_slots_never_runs_out) {
  Scheduler scheduler(config_of(4));
  EXPECT(serve(scheduler, 1, tokens(30), 20) == 0);
  EXPECT(serve(scheduler, 2, tokens(60), 20) == 0);
  SchedulerConfig config = config_of(3);
  EXPECT_THROWS(config.validate(), std::invalid_argument);
  config = config_of(5);
  config.tiers = {{5, 5, 2, 1}};
  EXPECT_THROWS(config.validate(), std::invalid_argument);
  config.states.num_slots = 6;
  config.validate();
}

// With any order of arrivals, aborts, failures and preemptions, every row reads the state of exactly its
// tokens.
TEST(every_row_reads_the_state_of_its_tokens) {
  for (const uint32_t seed : {1u, 2u, 3u, 4u}) {
    std::mt19937 random(seed);
    const auto below = [&](int32_t end) {
      return std::uniform_int_distribution<int32_t>(0, end - 1)(random);
    };
    SchedulerConfig config{24, 4, 4, 8, 16, true};
    config.states.num_slots = least_state_slots(4) + below(6);
    Scheduler scheduler(config);
    std::map<StateSlot, std::vector<int32_t>> contents{{kNullSlot, {}}};
    std::map<SeqId, std::vector<int32_t>> texts;
    int64_t num_added = 0, num_preempted = 0, num_hits = 0;
    for (int step = 0; step < 3000; ++step) {
      if (below(3) == 0 && texts.size() < 12) {
        std::vector<int32_t> prompt = tokens(4 * below(8), below(2) * 1000);
        for (int32_t left = 1 + below(9); left > 0; --left) prompt.push_back(below(3));
        const SeqId seq{++num_added};
        scheduler.add(seq, prompt, 1 + below(20), {});
        texts[seq] = prompt;
      }
      const auto plan = scheduler.plan();
      num_preempted += static_cast<int64_t>(plan->preempted.size());
      std::map<StateSlot, std::vector<int32_t>> written;
      for (int32_t row = 0; row < plan->num_requests(); ++row) {
        const auto r = static_cast<size_t>(row);
        const std::vector<int32_t>& text = texts.at(plan->seqs[r]);
        const int32_t begin = plan->positions[static_cast<size_t>(plan->query_indptr[r])];
        const int32_t num_tokens = plan->query_indptr[r + 1] - plan->query_indptr[r];
        const auto prefix = [&](int32_t count) {
          return std::vector<int32_t>(text.begin(), text.begin() + count);
        };
        EXPECT((plan->states_in[r] == kNullSlot) == (begin == 0));
        EXPECT(contents.at(plan->states_in[r]) == prefix(begin));
        const auto leave = [&](StateSlot slot, int32_t count) {
          EXPECT(slot != kNullSlot && written.count(slot) == 0);
          written[slot] = prefix(begin + count);
          for (size_t other = 0; other < plan->states_in.size(); ++other) {
            EXPECT(plan->states_in[other] != slot || (other == r && plan->states_out[r] == slot));
          }
        };
        for (int32_t save = plan->save_indptr[r]; save < plan->save_indptr[r + 1]; ++save) {
          leave(plan->save_slots[static_cast<size_t>(save)], plan->save_ends[static_cast<size_t>(save)]);
        }
        leave(plan->states_out[r], num_tokens);
      }
      for (auto& [slot, text] : written) contents[slot] = text;
      if (plan->num_requests() > 0 && below(20) == 0) {
        const SeqId seq = plan->seqs[static_cast<size_t>(below(plan->num_requests()))];
        scheduler.fail(seq, below(2) == 0);
      }
      std::vector<int32_t> sampled(plan->logits_at.size());
      for (int32_t& token : sampled) token = below(3);
      const auto committed = scheduler.commit(sampled);
      for (size_t i = 0; i < committed->seqs.size(); ++i) {
        texts.at(committed->seqs[i]).push_back(committed->tokens[i]);
      }
      if (!texts.empty() && below(15) == 0) {
        scheduler.abort(std::next(texts.begin(), below(static_cast<int32_t>(texts.size())))->first);
      }
      scheduler.check();
      std::map<SeqId, std::vector<int32_t>> live;
      for (const Description& each : scheduler.describe()) live[each.seq] = texts.at(each.seq);
      texts = live;
    }
    num_hits = scheduler.stats().prefix_hit_tokens;
    EXPECT(num_preempted > 0 && num_hits > 0);
    for (const auto& [seq, text] : texts) scheduler.abort(seq);
    scheduler.check();
    EXPECT(scheduler.stats().used_tokens == 0);
  }
}
