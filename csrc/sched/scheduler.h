// Continuous batching: which tokens of which requests the next step computes, and where their KV is written.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/ids.h"
#include "sched/admission.h"
#include "sched/prompt_lanes.h"
#include "sched/queue/queue_time.h"
#include "sched/queue/slot_releases.h"
#include "sched/scheduler_state.h"
#include "sched/step_draft.h"
#include "sched/steps/outstanding_steps.h"
#include "sched/types/config.h"
#include "sched/types/lane.h"
#include "sched/types/plan.h"
#include "sched/types/request.h"

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
  // Numbers of prompt tokens that later prompts are likely to repeat, ascending: there, snapshots of
  // recurrent state are wanted, each at the end of the last full block.
  std::vector<int32_t> snapshots_at;
  // Tokens that later prompts may not repeat, nor what follows them: a snapshot is wanted before the first
  // one in the reply.
  std::vector<int32_t> snapshot_before;
};

// Owns the requests, their blocks and the outstanding steps. Not thread-safe. A step is plan(), then commit()
// with one sampled token per sampled logit. Each lane has at most one outstanding step; a request is in one
// of them at a time.
//
// Running and waiting requests are both in the order of service (see FairQueue); Admission starts waiting
// ones. Preemption takes the last running request that is in no outstanding plan, so the first running
// request makes progress in every step of its lane and is never preempted while others run. A running request
// never gives way to a waiting one. Requests of low priority wait while enough of higher priority arrive.
//
// A request that fetches is not preempted until fetched(). Then it gets the next free slot. After a request
// has started, only decoding takes further blocks.
//
// Plans depend only on the calls and their arguments, the times among them.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config);

  void add(SeqId seq, std::vector<int32_t> prompt, int64_t max_tokens, std::vector<int32_t> stop_tokens,
           const AddOptions& options = {});
  bool abort(SeqId seq);
  // Draft tokens: predictions, e.g. by a small model, of the tokens after the last one of a decoding
  // sequence. Its row in the next plan computes all of them and has logits for each token; commit() keeps
  // those that were right. Their number is limited by max_tokens, by the free blocks, and by chunk_size -
  // max_batch_size for all sequences together; with recurrent state there are none. Throws
  // std::invalid_argument unless the sequence decodes in the next step.
  void propose(SeqId seq, std::vector<int32_t> draft_tokens);
  // A row of the outstanding plan failed: commit() frees its sequence and does not publish what the step
  // computed for it. With `forget`, which is for wrong numbers, no block that it read or wrote before is
  // reused either.
  void fail(SeqId seq, bool forget);
  // The next step of a lane. An empty plan means that nothing can run in it now. `now_s` is the time of a
  // monotonic clock in seconds; without it, costs stay as measured at start.
  std::shared_ptr<Plan> plan(Lane lane = Lane::kDecode, std::optional<double> now_s = {});
  // Predicts the next plan of the decode lane, except token ids, and acquires its blocks. The prediction
  // fails if a request arrives, leaves or ends. For use while a plan with decode rows only is outstanding;
  // null if the next plan cannot be predicted.
  std::shared_ptr<Plan> plan_ahead();
  // `sampled`: a token for each of Plan::logits_at. A row with draft tokens keeps its first sampled token,
  // and each next one while the sampled token before it equals the draft token. Blocks that are no longer
  // needed are released.
  std::shared_ptr<Committed> commit(const std::vector<int32_t>& sampled, Lane lane = Lane::kDecode,
                                    std::optional<double> now_s = {});

  // The transfers ordered since the last call; call it after plan(), commit(), fetched() and stored().
  std::vector<Transfer> take_transfers();
  // Completes the fetch of a request: the first num_blocks arrived. The next one, or its state, is damaged,
  // or the fetch was stopped there.
  void fetched(SeqId seq, int32_t num_blocks, Damage damage);
  // Seconds that a tier takes per block, as measured lately; 0: unknown. Blocks that are faster to compute
  // are not fetched.
  void measured(int32_t tier, double block_seconds);
  // Number of blocks that a tier still has to bring for a request; it must not grow.
  void coming(SeqId seq, int32_t tier, int32_t num_blocks);
  // Whether everything that a request fetches would still be fetched.
  bool is_worth_fetching(SeqId seq) const;
  // See TierMirror.
  void stored(int32_t tier, bool is_whole);
  void stored_state(int32_t tier, bool is_whole);
  // Nothing has run for a while, so that all conversations are at rest, see TierStates.
  void rest();
  // Registers blocks that an earlier process left in a tier, see Tier::restore; call it before the first
  // step.
  void restore(int32_t tier, const std::vector<BlockId>& blocks, const std::vector<BlockId>& parents,
               const std::vector<int32_t>& tokens, const std::vector<Salt>& salts,
               const std::vector<bool>& have_windows, const std::vector<StateSlot>& states = {});

  int32_t cached_tokens(SeqId seq) const;
  Stats stats() const;
  // See StateSlots.
  std::vector<int32_t> snapshot_positions(size_t most) const {
    return state_.blocks.states().positions(most);
  }
  const StepCosts& costs() const { return state_.planner.costs(); }
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
  void plan_decodes(StepDraft& draft);
  bool make_room(StepDraft& draft, size_t index);
  void preempt(StepDraft& draft, size_t index);
  void plan_draft_tokens(StepDraft& draft);
  void plan_prompts(StepDraft& draft);
  void plan_states(Lane lane);

  static Finish append(Request& request, int32_t token);
  static Finish append_sampled(Request& request, const int32_t* sampled, Committed& committed);
  void end(const Request& request);
  void check_leader(const std::string& name, const AddOptions& options) const;
  Request& fetching(SeqId seq) const;
  void check_running(const Request& request) const;
  static void check_waiting(const Request& request);

  SchedulerState state_;
  Admission admission_{state_};
  PromptLanes lanes_{state_, admission_};
  OutstandingSteps steps_;
  std::shared_ptr<Plan> predicted_;  // until the decode lane's next plan()
  SlotReleases slot_releases_;
  // A decoding request got no block, because only requests in the prefill lane's plan and fetching requests
  // hold any. No other request starts until it has one.
  bool is_starved_ = false;
  int64_t num_arrivals_ = 0, num_preemptions_ = 0;
};

}  // namespace ballast
