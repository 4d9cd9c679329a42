// Continuous batching: which tokens of which requests the next step computes, and where their KV is written.
#pragma once

#include <array>
#include <cstdint>
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
#include "sched/fair_queue.h"
#include "sched/lane.h"
#include "sched/plan.h"
#include "sched/queue_time.h"
#include "sched/request.h"
#include "sched/slot_releases.h"
#include "sched/step_planner.h"
#include "sched/tier_mirror.h"

namespace ballast {

struct AddOptions {
  int64_t min_tokens = 0;  // stop tokens do not count before this many
  int32_t priority = 0;
  int64_t client = 0;  // within a priority, clients share the batch fairly
  // A live sequence with the same prompt and salt, of the same or a more urgent priority: this one is
  // admitted when the leader's prompt is computed, and shares its blocks.
  std::optional<SeqId> leader;
  // Every token of the prompt goes through the model, at most chunk_size per step: the prefix cache is not
  // read.
  bool scores_prompt = false;
  Salt salt;  // blocks are shared only among sequences with the same salt
};

class QueueFullError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Owns the requests, their blocks and the outstanding steps. Not thread-safe. A step is plan(), then commit()
// with the sampled tokens. Each lane has at most one outstanding step; a request is in one of them at a time.
//
// running_ and the queue are both in the order of service (see FairQueue). Waiting requests are admitted in
// that order. A request that waits for something other than room is skipped: it is assigned to the other
// lane, it waits for its leader, or it is long and another prompt is partly computed. The first skipped
// request keeps a slot and blocks reserved. Preemption takes the last running request that is in no
// outstanding plan, so the first running request makes progress in every step of its lane and is never
// preempted while others run. A running request never gives way to a waiting one. Requests of low priority
// wait while enough of higher priority arrive.
//
// A request whose prefix continues in a tier is admitted as fetching: it holds all its blocks, but no slot,
// and is in no step and not preempted until fetched(). Then it gets the next free slot.
//
// At admission a request gets the blocks for all its tokens. Afterwards only decoding takes further blocks.
//
// Plans depend only on the calls and their arguments, the times among them.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config);

  void add(SeqId seq, std::vector<int32_t> prompt, int64_t max_tokens, std::vector<int32_t> stop_tokens,
           const AddOptions& options = {});
  bool abort(SeqId seq);
  // A row of the outstanding plan failed: commit() frees its sequence and does not publish what the step
  // computed for it. With `forget`, for wrong numbers, nothing that it read or wrote before is served to
  // others either.
  void fail(SeqId seq, bool forget);
  // The next step of a lane. An empty plan means that nothing can run in it now. `now_s` is the time of a
  // monotonic clock in seconds; without it, costs stay as measured at start.
  std::shared_ptr<Plan> plan(Lane lane = Lane::kDecode, std::optional<double> now_s = {});
  // What the next plan of the decode lane will be, except token ids, unless a request arrives, leaves or
  // ends; its blocks are taken already. For use while a plan that only decodes is outstanding; null if the
  // next one cannot be predicted.
  std::shared_ptr<Plan> plan_ahead();
  std::shared_ptr<Committed> commit(const std::vector<int32_t>& sampled, Lane lane = Lane::kDecode,
                                    std::optional<double> now_s = {});

  // The transfers ordered since the last call; call it after plan(), commit(), fetched() and stored().
  std::vector<Transfer> take_transfers();
  // Completes the fetch of a request: the first num_blocks arrived. The next one is damaged, or the fetch was
  // stopped there.
  void fetched(SeqId seq, int32_t num_blocks, bool is_damaged);
  // Seconds that a tier takes per block, as measured lately; 0: unknown. Blocks that are faster to compute
  // are not fetched.
  void measured(int32_t tier, double block_seconds);
  // Number of blocks that a tier still has to bring for a request; it must not grow.
  void coming(SeqId seq, int32_t tier, int32_t num_blocks);
  // Whether everything that a request fetches would still be fetched.
  bool is_worth_fetching(SeqId seq) const;
  // See TierMirror.
  void stored(int32_t tier, bool is_whole);
  // Takes in what an earlier process left in a tier, see Tier::restore; before anything runs.
  void restore(int32_t tier, const std::vector<BlockId>& blocks, const std::vector<BlockId>& parents,
               const std::vector<int32_t>& tokens, const std::vector<Salt>& salts);

  int32_t cached_tokens(SeqId seq) const;
  Stats stats() const;
  const StepCosts& costs() const { return planner_.costs(); }
  // Seconds of the next step over all waiting prompts; 0 if none waits or no costs are known.
  double next_prompt_step_s();
  // The load, for estimates of queue times. `now_s` as of plan().
  // prompt_share: the share of a prompt that the prefix cache does not have, for requests not looked up yet.
  QueueState queue_state(ReplyLength reply = {}, double prompt_share = 1.0,
                         std::optional<double> now_s = {}) const;
  // Running requests, then at most `max_waiting` waiting ones, each in the order of service.
  std::vector<Description> describe(int64_t max_waiting = std::numeric_limits<int64_t>::max()) const;
  void check() const;

 private:
  // The outstanding plan of a lane, between plan() and commit(); null outside.
  struct Outstanding {
    std::shared_ptr<Plan> plan;
    std::vector<Request*> rows;
    std::optional<double> began_s;
    bool in_pass = false;   // whether the other lane had a pass outstanding when this began
    bool is_mixed = false;  // whether a pass began or ended during this step of the decode lane
  };

  void plan_decodes();
  bool assign_slots();
  void acquire_slot(Request& request);
  void release_slot(Request& request);
  bool make_room(size_t index);

  void assign_lanes(std::optional<double> now_s);
  LaneState lane_state(std::optional<double> now_s) const;
  double seconds_left(Lane lane, std::optional<double> now_s) const;
  bool holds_pass(std::optional<double> now_s);
  void plan_prompts();
  void admit();
  int32_t match(Request& request) const;
  bool fits_in_step(Request& request) const;
  bool is_assigned(const Request& request) const;
  bool continues_prompt(const Request& request) const;
  int32_t blocks_to_admit(const Request& request) const;
  void start(Request& request);
  bool waits_for_leader(const Request& request) const;
  bool leader_has_no_slot(const Request& request) const;
  bool waits_to_fetch(const Request& request) const;
  int32_t allowance(const Request& request, int32_t budget) const;

  int32_t blocks_for(int32_t num_tokens) const;
  int32_t blocks_short(const Request& request, int32_t num_tokens) const;
  void schedule(Request& request, int32_t num_tokens);
  void take_blocks(Request& request, int32_t num_tokens);
  void preempt(size_t index);
  void fill(Plan& plan);
  void append_row(Plan& plan, const Request& request, int32_t begin, int32_t end) const;

  Finish append_sampled(Request& request, int32_t token) const;
  void publish(Request& request);
  void release(Request& request);
  void forget(Request& request);
  void end(const Request& request);
  void check_leader(const std::string& name, const AddOptions& options) const;
  Request& fetching(SeqId seq) const;
  Outstanding& outstanding(Lane lane) { return outstanding_[static_cast<size_t>(lane)]; }
  const Outstanding& outstanding(Lane lane) const { return outstanding_[static_cast<size_t>(lane)]; }
  bool is_outstanding(Lane lane) const { return !outstanding(lane).rows.empty(); }

  SchedulerConfig config_;
  StepPlanner planner_;
  BlockManager blocks_;
  TierMirror tiers_;
  std::unordered_map<SeqId, std::unique_ptr<Request>> requests_;  // for look-ups by id; never iterated
  FairQueue queue_;
  std::vector<Request*> running_;
  int32_t num_slots_used_ = 0;  // running requests that have a slot
  int64_t num_arrivals_ = 0;
  int64_t num_plans_ = 0;
  SlotReleases slot_releases_;
  std::optional<double> held_since_s_;  // since when a pass is held, see StepPlanner::holds_pass
  int64_t num_preemptions_ = 0, prefix_query_tokens_ = 0, prefix_hit_tokens_ = 0;

  std::array<Outstanding, 2> outstanding_;  // by lane
  std::shared_ptr<Plan> predicted_;         // until the decode lane's next plan()
  // A decoding request found no block, since only requests in the prefill lane's plan or fetching ones could
  // give some: until it has one, nothing else starts.
  bool is_starved_ = false;

  // During plan().
  Lane lane_ = Lane::kDecode;
  int32_t num_decode_ = 0;   // requests that decode
  int32_t num_prompts_ = 0;  // prompts assigned to lane_
  std::vector<SeqId> preempted_;
  const Request* part_way_ = nullptr;  // the first request whose prompt this step does not complete
  int32_t budget_ = 0;                 // tokens that the step may still take
  int32_t num_planned_ = 0;            // tokens that it has
};

}  // namespace ballast
