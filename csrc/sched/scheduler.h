// Continuous batching: which tokens of which requests the next step computes, and where their KV goes.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "kv/block_manager.h"
#include "sched/config.h"
#include "sched/plan.h"
#include "sched/request.h"

namespace ballast {

class QueueFullError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Not thread-safe. A step is plan(), then commit() with what was sampled.
//
// Requests are admitted in arrival order, and the victim of a preemption is always the one that arrived last.
// So everything that runs arrived before everything that waits: running_ and waiting_, one after the other,
// are all live requests in arrival order, and the oldest of them makes progress in every step. At most one
// running request is part-way through the tokens it has, and that is the youngest; all others decode.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config);

  void add(SeqId seq, std::vector<int32_t> prompt, int64_t max_tokens, std::vector<int32_t> stop_tokens,
           int64_t min_tokens);
  bool abort(SeqId seq);
  std::shared_ptr<Plan> plan();
  std::shared_ptr<Committed> commit(const std::vector<int32_t>& sampled);

  int32_t cached_tokens(SeqId seq) const;
  Stats stats() const;
  std::vector<Description> describe() const;
  void check() const;

 private:
  void plan_decodes();
  void continue_prefill();
  void admit();
  void fill(Plan& plan);
  void append_row(Plan& plan, Request& request);

  int32_t blocks_for(int32_t num_tokens) const;
  int32_t blocks_short(const Request& request, int32_t num_tokens) const;
  void schedule(Request& request, int32_t num_tokens);
  void preempt_youngest();
  Finish append_sampled(Request& request, int32_t token) const;
  void publish(Request& request);

  SchedulerConfig config_;
  BlockManager blocks_;
  std::unordered_map<SeqId, std::unique_ptr<Request>> requests_;  // for look-ups by id; never walked
  std::deque<Request*> waiting_;                                  // preempted ones first, then new ones
  std::vector<Request*> running_;
  int32_t num_new_waiting_ = 0;  // those of waiting_ that never ran; max_queue bounds them
  int64_t num_arrivals_ = 0;

  std::shared_ptr<Plan> plan_;    // outstanding between plan() and commit(), else null
  std::vector<Request*> rows_;    // the outstanding plan's rows
  std::vector<SeqId> preempted_;  // during plan()
  std::vector<BlockId> matched_;  // scratch of admit()
  int32_t budget_ = 0;            // tokens that the step in planning may still take
  int64_t num_preemptions_ = 0, prefix_query_tokens_ = 0, prefix_hit_tokens_ = 0;
};

}  // namespace ballast
