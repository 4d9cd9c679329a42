// Continuous batching: which tokens of which requests the next step computes, and where their KV goes.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "kv/block_manager.h"
#include "sched/config.h"
#include "sched/fetching.h"
#include "sched/lane.h"
#include "sched/plan.h"
#include "sched/request.h"
#include "sched/turns.h"

namespace ballast {

struct AddOptions {
  int64_t min_tokens = 0;  // stop tokens do not count before this many
  int32_t priority = 0;
  int64_t client = 0;  // who asks: within a priority, clients take turns
  // A live sequence with the same prompt, of the same or a more urgent priority: this one is admitted when
  // that one's prompt is computed, and shares it.
  std::optional<SeqId> leader;
  // Every token of the prompt goes through the model, chunk_size at most in a step: the prefix cache is not
  // read.
  bool scores_prompt = false;
};

class QueueFullError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Not thread-safe. A step is plan(), then commit() with what was sampled. Each lane has one step outstanding
// at most; a request is in one of them at a time.
//
// Requests have an order: by priority, lower first; within a priority by turns, one a client in each round;
// and within a client by arrival. So with one client it is by arrival. A request has the turn of its leader
// if both are of one client and one priority. running_ and waiting_ are both kept in this order. They are
// admitted in that order, but for those that wait for something else than room: for the other lane's next
// step, for their leader, or, being long, for the end of a prompt that is part-way. These are passed, and the
// first of them keeps room for itself. The victim of a preemption is always the last running request, of
// those that no outstanding plan holds. So the first running request makes progress in every step of its lane
// and is never preempted while others run. A running request gives way to no waiting one. Requests of low
// priority wait for as long as enough of higher priority arrive.
//
// With tiers, a full block is sent to each of them as soon as it is published, so nothing is left to do when
// the cache gives it up. What a tier has no room for on its way is sent later, after the request's end as
// well, while the cache has it. A request whose prefix goes on in tiers, beyond what the cache holds, is
// admitted as one that fetches: it is among those that run and holds all its blocks, but is in no step and no
// victim until fetched(), and takes none of the max_batch_size places. It then gets the next one that is
// free.
//
// A request that is admitted gets the blocks for all its tokens at once. Thereafter only those that decode
// come to need more.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config);

  void add(SeqId seq, std::vector<int32_t> prompt, int64_t max_tokens, std::vector<int32_t> stop_tokens,
           const AddOptions& options = {});
  bool abort(SeqId seq);
  // A row of the outstanding plan went wrong: at commit() its sequence is freed, and what the step computed
  // for it is not published. With `forget` nothing that it read or wrote before is served to others either,
  // for where the numbers themselves are wrong.
  void fail(SeqId seq, bool forget);
  // The next step of a lane. An empty plan means that nothing can run in it now.
  std::shared_ptr<Plan> plan(Lane lane = Lane::kDecode);
  // What the decode lane's next plan will be, token ids aside, unless a request comes, goes or ends; its
  // blocks are taken already. For while a plan that only decodes is outstanding; null where the next one
  // cannot be predicted.
  std::shared_ptr<Plan> plan_ahead();
  std::shared_ptr<Committed> commit(const std::vector<int32_t>& sampled, Lane lane = Lane::kDecode);

  // What is to be moved since the last call; to be asked for after every call of plan(), commit(), fetched()
  // and stored().
  std::vector<Transfer> take_transfers();
  // What take_transfers() has asked for of one request is over: the first num_blocks arrived. The next one is
  // damaged, or the fetch was given up there.
  void fetched(SeqId seq, int32_t num_blocks, bool is_damaged);
  // What bringing a block back from a tier takes, as measured lately; 0: nobody knows. What is sooner
  // computed is not fetched.
  void measured(int32_t tier, double block_seconds);
  // Of what a request fetches, a tier still has so many blocks to bring; never more than before.
  void coming(SeqId seq, int32_t tier, int32_t num_blocks);
  // Whether all that a request fetches would be fetched, as far as is known by now.
  bool is_worth_fetching(SeqId seq) const;
  // The oldest of a tier's stores is over. One that was lost, `is_whole` false, is the last that is tried.
  void stored(int32_t tier, bool is_whole);
  // What an earlier process has left in a tier, see Tier::restore; to be called before anything runs.
  void restore(int32_t tier, const std::vector<BlockId>& blocks, const std::vector<BlockId>& parents,
               const std::vector<int32_t>& tokens);

  int32_t cached_tokens(SeqId seq) const;
  Stats stats() const;
  // Those that run, then those that wait, `max_waiting` of them at most; each in their order.
  std::vector<Description> describe(int64_t max_waiting = std::numeric_limits<int64_t>::max()) const;
  void check() const;

 private:
  // What a request has left that tiers had no room for on their way. It is sent as they have, for as long as
  // the cache keeps it.
  struct Unsent {
    std::vector<int32_t> tokens;   // of full blocks, and those alone
    PrefixMatch match;             // the cache's blocks, which nobody holds
    std::vector<TierTable> tiers;  // as the request's
  };
  static constexpr size_t kMostUnsent = 64;

  // A lane's outstanding plan, between plan() and commit(); null outside.
  struct Outstanding {
    std::shared_ptr<Plan> plan;
    std::vector<Request*> rows;
  };

  void plan_decodes();
  bool give_places();
  void take_place(Request& request);
  void leave_place(Request& request);
  bool make_room(size_t index);
  void plan_prompts();
  void admit();
  bool joins(Request& request) const;
  int32_t blocks_to_admit(const Request& request) const;
  void start(Request& request);
  void fill(Plan& plan);
  void append_row(Plan& plan, const Request& request, int32_t begin, int32_t end) const;

  void match_tiers(Request& request) const;
  void begin_fetch(Request& request);
  void mirror(Request& request);
  void send(size_t tier, TierTable& to, const std::vector<int32_t>& tokens,
            const std::vector<BlockId>& blocks, size_t num_blocks);
  void keep_unsent(const Request& request);
  void send_unsent();
  void give_up(Unsent& unsent);
  void note_dropped(BlockId evicted);
  void forget(Request& request);
  void release(Request& request);
  size_t checked_tier(int32_t tier) const;
  Request& fetching(SeqId seq) const;

  Turn turn_of(const Request& request) const;
  void hand_turns_down(const Request& leaver);
  void end(const Request& request);
  void check_leader(const std::string& name, const AddOptions& options) const;
  int32_t blocks_for(int32_t num_tokens) const;
  int32_t blocks_short(const Request& request, int32_t num_tokens) const;
  void schedule(Request& request, int32_t num_tokens);
  void take_blocks(Request& request, int32_t num_tokens);
  bool waits_for_leader(const Request& request) const;
  bool is_behind(const Request& request) const;
  bool waits_to_fetch(const Request& request) const;
  Lane lane_of(const Request& request, int32_t num_tokens) const;
  int32_t allowance(const Request& request, int32_t budget) const;
  void preempt(size_t index);
  Finish append_sampled(Request& request, int32_t token) const;
  void publish(Request& request);
  bool is_under_way(Lane lane) { return !outstanding(lane).rows.empty(); }
  Outstanding& outstanding(Lane lane) { return outstanding_[static_cast<size_t>(lane)]; }

  SchedulerConfig config_;
  BlockManager blocks_;
  std::vector<Tier> tiers_;
  std::vector<Transfer> transfers_;
  std::vector<FetchSpeed> speeds_;                        // by tier
  std::vector<int64_t> fetched_tokens_, dropped_tokens_;  // by tier
  // By tier and block of the cache: the stamp of what was last sent of it.
  std::vector<std::vector<uint64_t>> sent_;
  std::deque<Unsent> unsent_;                                     // kMostUnsent at most, the oldest first
  std::unordered_map<SeqId, std::unique_ptr<Request>> requests_;  // for look-ups by id; never walked
  std::deque<Request*> waiting_;
  std::vector<Request*> running_;
  Rounds rounds_;
  int32_t num_placed_ = 0;       // those of running_ that have a place
  int32_t num_new_waiting_ = 0;  // those of waiting_ that never ran; max_queue bounds them
  int64_t num_arrivals_ = 0;
  int64_t num_fetches_ = 0;
  int64_t num_preemptions_ = 0, prefix_query_tokens_ = 0, prefix_hit_tokens_ = 0;

  std::array<Outstanding, 2> outstanding_;  // by lane
  std::shared_ptr<Plan> predicted_;         // until the decode lane's next plan()
  // A request that decodes found no block, since the only ones to take some from are in the prefill lane's
  // plan, or fetch: until it has one, nothing else starts.
  bool is_starved_ = false;

  // During plan().
  Lane lane_ = Lane::kDecode;
  int32_t num_decode_ = 0;  // requests that decode
  std::vector<SeqId> preempted_;
  const Request* part_way_ = nullptr;  // the first in order whose tokens the step does not complete
  int32_t budget_ = 0;                 // tokens that the step may still take
  int32_t num_planned_ = 0;            // and those that it takes already
};

}  // namespace ballast
