#include <algorithm>

#include "check.h"
#include "kv/block_manager.h"
#include "sched/request_blocks.h"
#include "sched/scheduler.h"
#include "sched/snapshot_uses.h"

using namespace ballast;

namespace {

constexpr int32_t kBlock = 4;

std::vector<int32_t> tokens(int32_t count, int32_t first = 0) {
  std::vector<int32_t> all(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) all[static_cast<size_t>(i)] = first + i;
  return all;
}

std::vector<int32_t> joined(std::vector<int32_t> begin, const std::vector<int32_t>& end) {
  begin.insert(begin.end(), end.begin(), end.end());
  return begin;
}

SchedulerConfig config_of(int32_t num_slots, std::vector<TierConfig> tiers = {}) {
  SchedulerConfig config{200, kBlock, 1, 64, 64, true};
  config.states.num_slots = num_slots;
  config.tiers = std::move(tiers);
  return config;
}

// The cache without a scheduler: requests begin, leave snapshots and end.
struct Cache {
  explicit Cache(const SchedulerConfig& config = config_of(40))
      : blocks(config.num_blocks, kBlock, true, {}, config.states),
        tiers(config, blocks),
        request_blocks(kBlock, blocks, tiers),
        uses(kBlock, blocks, tiers) {}

  Request begin(const std::vector<int32_t>& prompt, const std::vector<int32_t>& snapshots_at) {
    Request request;
    request.arrival = num_begun++;
    request.tokens = prompt;
    request.prompt_tokens = static_cast<int32_t>(prompt.size());
    request.snapshots_at = snapshots_at;
    request.tiers.resize(tiers.size());
    schedule(request);
    return request;
  }
  void schedule(Request& request) {
    blocks.match(request.tokens, request.salt, request.match);
    request_blocks.begin(request);
    uses.begin(request);
    request.fetches_first = !request.admitted_before;
    request.admitted_before = true;
  }
  // Computes tokens, and leaves a snapshot after them. Returns its block.
  BlockId leave(Request& request, int32_t num_tokens, TurnEnds ends = 0) {
    request_blocks.acquire(request, num_tokens - request.num_computed);
    request.num_computed = std::max(request.num_computed, num_tokens);
    request_blocks.publish(request);
    const BlockId block = request.blocks[static_cast<size_t>(num_tokens / kBlock - 1)];
    const StateSlot slot = blocks.states().take();
    const SnapshotUse use = uses.at(request, num_tokens, ends);
    blocks.states().attach(block, slot, use);
    blocks.states().release(slot);
    uses.note_left(request, use);
    return block;
  }
  void finish(Request& request) {
    uses.finish(request);
    request_blocks.release(request);
  }
  void abort(Request& request) {
    uses.abort(request);
    request_blocks.release(request);
  }
  bool goes_first(BlockId block) const { return use_of(block).goes_first; }
  const SnapshotUse& use_of(BlockId block) const { return blocks.states().use_of(block); }

  BlockManager blocks;
  TierMirror tiers;
  RequestBlocks request_blocks;
  SnapshotUses uses;
  int64_t num_begun = 0;
};

// A turn whose prompt is the user's message after `said`, with a reply of 8 tokens.
struct Exchange {
  Exchange(Cache& cache, const std::vector<int32_t>& said, int32_t first)
      : request(cache.begin(joined(said, tokens(8, first)), {static_cast<int32_t>(said.size()) + 8})) {
    user = cache.leave(request, request.prompt_tokens);
    request.tokens = joined(request.tokens, tokens(9, first + 50));
    reply = cache.leave(request, request.prompt_tokens + 8, kAfterReply);
    cache.finish(request);
  }
  std::vector<int32_t> said() const { return {request.tokens.begin(), request.tokens.end() - 1}; }
  std::vector<int32_t> prompt() const {
    return {request.tokens.begin(), request.tokens.begin() + request.prompt_tokens};
  }

  Request request;
  BlockId user, reply;
};

// Runs a request alone, with a reply of `max_tokens`, or for `most_steps`, after which it is aborted. Returns
// the number of cached prompt tokens.
int32_t serve(Scheduler& scheduler, int64_t seq, const std::vector<int32_t>& prompt,
              int32_t most_steps = 100) {
  AddOptions options;
  options.snapshots_at = {static_cast<int32_t>(prompt.size())};
  scheduler.add(SeqId{seq}, joined(prompt, {1, 2}), 8, {}, options);
  int32_t num_cached = 0;
  for (int32_t step = 0; step < most_steps; ++step) {
    const auto plan = scheduler.plan();
    if (plan->num_requests() == 0) return num_cached;
    num_cached = scheduler.cached_tokens(SeqId{seq});
    scheduler.commit(std::vector<int32_t>(plan->logits_at.size(), 7));
    scheduler.check();
  }
  scheduler.abort(SeqId{seq});
  scheduler.check();
  return num_cached;
}

}  // namespace

TEST(a_conversation_keeps_the_end_at_which_it_has_continued) {
  for (const bool is_repeated : {true, false}) {
    Cache cache;
    const Exchange first(cache, {}, 0);
    EXPECT(!cache.goes_first(first.user) && cache.goes_first(first.reply));
    const Exchange second(cache, is_repeated ? first.said() : joined(first.prompt(), tokens(12, 900)), 100);
    EXPECT(cache.goes_first(first.user) && cache.goes_first(first.reply));
    EXPECT(cache.goes_first(second.user) == is_repeated && cache.goes_first(second.reply) != is_repeated);
    // Another conversation is expected to do the same, until it does something else.
    const Exchange other(cache, tokens(4, 7000), 5000);
    EXPECT(cache.goes_first(other.user) == is_repeated);
    const Exchange next(cache, is_repeated ? joined(other.prompt(), tokens(12, 950)) : other.said(), 5100);
    EXPECT(cache.goes_first(next.user) != is_repeated);
    const Exchange third(cache, is_repeated ? second.said() : joined(second.prompt(), tokens(12, 970)), 200);
    EXPECT(cache.goes_first(third.user) == is_repeated);
  }
}

TEST(a_repeated_reply_is_noticed_without_its_snapshot) {
  Cache cache;
  const Exchange first(cache, {}, 0);
  cache.blocks.states().drop(first.reply);
  const Exchange second(cache, first.said(), 100);
  EXPECT(cache.goes_first(second.user) && !cache.goes_first(second.reply));
}

TEST(steps_teach_nothing_about_the_next_message_of_the_user) {
  Cache cache;
  // The template drops the reasoning before the last message: each question continues at the one before.
  const Exchange first(cache, {}, 0);
  std::vector<int32_t> said = joined(first.prompt(), tokens(12, 900));
  for (int32_t question = 1; question < 4; ++question) {
    const auto num_asked = static_cast<int32_t>(said.size()) + 8;
    std::vector<int32_t> prompt = joined(said, tokens(8, 1000 * question));
    BlockId user{};
    for (int32_t step = 0; step < 5; ++step) {
      const auto num_tokens = static_cast<int32_t>(prompt.size());
      Request request =
          cache.begin(prompt, step == 0 ? std::vector{num_asked} : std::vector{num_asked, num_tokens});
      EXPECT(step == 0 || request.num_computed == num_tokens - 4);
      const BlockId end = cache.leave(request, num_tokens);
      if (step == 0) user = end;
      request.tokens = joined(request.tokens, tokens(9, 1000 * question + 100 * step + 50));
      request.continuation.calls = step < 4;
      const BlockId reply = cache.leave(request, num_tokens + 8, kAfterReply);
      cache.finish(request);
      EXPECT(!cache.goes_first(user));
      EXPECT(cache.goes_first(reply) == (step == 4));  // it makes no call, so the user is next
      EXPECT(step == 0 || cache.goes_first(end));
      prompt = joined({request.tokens.begin(), request.tokens.end() - 1},
                      tokens(4, 1000 * question + 100 * step + 80));
    }
    said = joined(joined(said, tokens(8, 1000 * question)), tokens(12, 1000 * question + 900));
  }
}

TEST(the_end_of_a_turn_remains_until_the_next_one_can_be_repeated) {
  Cache cache;
  const Exchange first(cache, {}, 0);
  Request next = cache.begin(joined(first.said(), tokens(9, 100)), {24});
  EXPECT(next.num_computed == 16 && next.continuation.of == first.request.arrival + 1);
  EXPECT(!cache.goes_first(first.user));
  const BlockId user = cache.leave(next, 24);
  EXPECT(cache.goes_first(first.reply));
  cache.abort(next);
  EXPECT(!cache.goes_first(first.reply) && !cache.goes_first(user));
  EXPECT(cache.use_of(user).request == first.request.arrival + 1);
  // It is tried again, and teaches nothing about where turns begin.
  Request again = cache.begin(joined(first.said(), tokens(9, 100)), {24});
  EXPECT(again.num_computed == 24 && again.continuation.of == first.request.arrival + 1);
  EXPECT(again.continuation.expected.of_turn == kAfterReply &&
         again.continuation.expected.of_step == kAllEnds);
  cache.finish(again);
  EXPECT(cache.goes_first(first.user) && cache.goes_first(first.reply) && !cache.goes_first(user));
}

TEST(a_request_that_was_preempted_keeps_what_it_has_learned) {
  Cache cache;
  const Exchange first(cache, {}, 0);
  Request next = cache.begin(joined(first.said(), tokens(9, 100)), {24});
  EXPECT(next.continuation.expected.of_turn == kAfterReply);
  const BlockId user = cache.leave(next, 24);
  const int64_t continued = next.continuation.of;
  // The state after its last block does not go first until it has finished.
  next.tokens = joined(next.tokens, tokens(9, 150));
  const BlockId within = cache.leave(next, 28);
  EXPECT(cache.goes_first(within));
  cache.blocks.states().use(within, cache.uses.at_preemption(next, 28));
  EXPECT(!cache.goes_first(within));
  cache.request_blocks.release(next);
  next.num_computed = 0;
  // Meanwhile, another conversation continues elsewhere.
  const Exchange other(cache, {}, 5000);
  const Exchange rewritten(cache, joined(other.prompt(), tokens(12, 900)), 5100);
  cache.schedule(next);
  EXPECT(next.num_computed == 28 && next.continuation.of == continued);
  EXPECT(next.continuation.expected.of_turn == kAfterReply);
  const BlockId reply = cache.leave(next, 32, kAfterReply);
  cache.finish(next);
  EXPECT(cache.goes_first(user) && !cache.goes_first(reply) && cache.goes_first(first.reply));
  EXPECT(cache.goes_first(within));
}

TEST(the_cache_does_not_branch_where_a_prompt_ends) {
  Cache cache;
  Request first = cache.begin(tokens(20), {});
  cache.leave(first, 20);
  cache.finish(first);
  for (const int32_t own : {1, 3, 4, 5}) {
    Request second = cache.begin(joined(tokens(12), tokens(own, 100)), {});
    EXPECT(second.num_known == 3 && second.continuation.branches == (own > 4));
    cache.abort(second);
  }
}

TEST(a_snapshot_is_shared_only_where_the_cache_branches) {
  for (const bool branches : {true, false}) {
    Cache cache;
    const std::vector<int32_t> common = tokens(12, 7000);
    Request first = cache.begin(joined(common, branches ? tokens(9, 100) : tokens(1, 100)), {});
    cache.leave(first, first.prompt_tokens / kBlock * kBlock);
    cache.finish(first);
    // Without its snapshot, the next request leaves one where it leaves what is known.
    cache.blocks.states().drop(cache.blocks.find(kNullBlock, common.data(), kNoSalt));
    if (!branches) {
      PrefixMatch match;
      cache.blocks.match(joined(common, {0}), kNoSalt, match);
      cache.blocks.states().drop(match.blocks.back());
    }
    Request second = cache.begin(joined(common, tokens(9, 200)), {20});
    EXPECT(second.num_known == 3 && second.num_computed == 0);
    const BlockId end = cache.leave(second, 12);
    cache.leave(second, 20);
    cache.finish(second);
    EXPECT(cache.use_of(end).is_shared() == branches && cache.goes_first(end) != branches);
    // From now on, it does.
    Request third = cache.begin(joined(common, tokens(9, 300)), {20});
    EXPECT(third.num_computed == 12 && third.continuation.of == 0 && cache.use_of(end).is_shared());
    cache.finish(third);
    EXPECT(cache.use_of(end).is_shared());
  }
}

TEST(a_shared_prefix_outlives_resting_conversations_that_are_older) {
  Scheduler scheduler(config_of(8));
  const std::vector<int32_t> common = tokens(18, 7000);
  for (int64_t seq = 1; seq < 4; ++seq) serve(scheduler, seq, tokens(20, 200 * static_cast<int32_t>(seq)));
  for (int64_t seq = 4; seq < 30; ++seq) {
    const int32_t num_cached =
        serve(scheduler, seq, joined(common, tokens(9, 200 * static_cast<int32_t>(seq))));
    EXPECT(num_cached == (seq < 6 ? 0 : 16));
  }
}

TEST(a_turn_can_be_aborted_after_any_step_and_tried_again) {
  for (int32_t num_steps = 1; num_steps < 9; ++num_steps) {
    SchedulerConfig config = config_of(6);
    config.chunk_size = config.prefill_chunk_size = 8;
    Scheduler scheduler(config);
    std::vector<int32_t> said = tokens(400);
    serve(scheduler, 1, said);
    said = joined(said, joined({1, 2, 7, 7, 7, 7, 7, 7, 7, 7}, tokens(22, 1000)));
    EXPECT(serve(scheduler, 2, said, num_steps) >= 400);
    for (int64_t seq = 3; seq < 5; ++seq) {
      EXPECT(serve(scheduler, seq, tokens(20, 5000 * static_cast<int32_t>(seq))) == 0);
    }
    EXPECT(serve(scheduler, 5, said) >= 400);
    // It rests while another conversation continues for a while.
    std::vector<int32_t> others = tokens(20, 15000);
    for (int32_t turn = 0; turn < 8; ++turn) {
      others = joined(others, joined({1, 2, 7, 7, 7, 7, 7, 7, 7, 7}, tokens(10, 6000 + 20 * turn)));
      EXPECT(serve(scheduler, 10 + turn, others) > 0);
    }
    said = joined(said, joined({1, 2, 7, 7, 7, 7, 7, 7, 7, 7}, tokens(8, 2000)));
    EXPECT(serve(scheduler, 6, said) >= 432);
  }
}

TEST(a_failed_fetch_changes_nothing_about_where_a_request_began) {
  Cache cache(config_of(40, {{200, 200, 40, 4}}));
  const Exchange first(cache, {}, 0);
  Request next = cache.begin(joined(first.said(), tokens(9, 100)), {24});
  next.state.fetched_use = {77, kAfterUser, false, {}};
  EXPECT(next.continuation.of == first.request.arrival + 1);
  next.tokens = joined(next.tokens, tokens(9, 150));
  const BlockId reply = cache.leave(next, 32, kAfterReply);
  cache.finish(next);
  EXPECT(!cache.goes_first(reply) && cache.goes_first(first.reply));
}

TEST(a_fetched_state_is_that_of_the_conversation_that_continues) {
  Cache cache(config_of(40, {{200, 200, 40, 4}}));
  Request next = cache.begin(tokens(29), {28});
  EXPECT(next.continuation.of == 0);
  ExpectedEnds expected;
  expected.of_turn = kAfterReply;
  next.state.fetched_use = {-3, kAfterReply, false, expected};
  next.num_computed = 20;
  cache.uses.begin_fetched(next);
  EXPECT(next.continuation.of == -3 && next.continuation.expected.of_turn == kAfterReply);
  // After a preemption, it fetches something that it has left itself.
  next.fetches_first = false;
  next.state.fetched_use = {1, kAfterUser, false, {}};
  cache.uses.begin_fetched(next);
  EXPECT(next.continuation.of == -3 && next.continuation.began_at == kAfterReply);
  cache.finish(next);
}
