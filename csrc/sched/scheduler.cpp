#include "sched/scheduler.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "sched/steps/plan_rows.h"

namespace ballast {

Scheduler::Scheduler(const SchedulerConfig& config) : state_(config) {}

void Scheduler::add(SeqId seq, std::vector<int32_t> prompt, int64_t max_tokens,
                    std::vector<int32_t> stop_tokens, const AddOptions& options) {
  const std::string name = "sequence " + std::to_string(static_cast<int64_t>(seq));
  if (state_.requests.count(seq) != 0)
    throw std::invalid_argument(name + " is live already; ids must be unique");
  if (prompt.empty()) throw std::invalid_argument(name + " has an empty prompt; at least 1 token is needed");
  if (max_tokens < 1) {
    throw std::invalid_argument(name + " has max_tokens=" + std::to_string(max_tokens) +
                                "; at least 1 is needed");
  }
  const int64_t capacity = state_.config.capacity_tokens();
  const int64_t prompt_tokens = static_cast<int64_t>(prompt.size());
  if (prompt_tokens > capacity || max_tokens > capacity + 1 - prompt_tokens) {
    throw std::invalid_argument(name + " never fits: " + std::to_string(prompt_tokens) +
                                " prompt tokens and max_tokens=" + std::to_string(max_tokens) +
                                " need more than the " + std::to_string(capacity) + " tokens of KV cache");
  }
  if (options.leader) check_leader(name, options);
  RequestStates::check_wanted(name, options.snapshots_at, prompt_tokens);

  auto request = std::make_unique<Request>();
  request->seq = seq;
  request->arrival = num_arrivals_++;
  request->tokens = std::move(prompt);
  request->prompt_tokens = static_cast<int32_t>(prompt_tokens);
  request->max_tokens = static_cast<int32_t>(max_tokens);
  request->min_tokens = options.min_tokens;
  request->priority = options.priority;
  request->client = options.client;
  request->leader = options.leader;
  request->scores_prompt = options.scores_prompt;
  request->salt = options.salt;
  request->stop_tokens = std::move(stop_tokens);
  state_.request_states.set_wanted(*request, options.snapshots_at, options.snapshot_before);
  request->tiers.resize(state_.tiers.size());
  state_.queue.enter(request.get());
  state_.requests.emplace(seq, std::move(request));
}

// A request that is in no queue any more and holds no block.
void Scheduler::end(const Request& request) {
  state_.queue.end(request.priority);
  state_.requests.erase(request.seq);
}

void Scheduler::check_leader(const std::string& name, const AddOptions& options) const {
  const auto leader = state_.requests.find(*options.leader);
  const std::string follows =
      name + " follows sequence " + std::to_string(static_cast<int64_t>(*options.leader));
  if (leader == state_.requests.end()) throw std::invalid_argument(follows + ", which is not live");
  if (!(options.salt == leader->second->salt)) {
    throw std::invalid_argument(follows + ", which has another salt");
  }
  if (options.priority < leader->second->priority) {
    throw std::invalid_argument(follows + " of priority " + std::to_string(leader->second->priority) +
                                " with priority " + std::to_string(options.priority) +
                                "; a follower's priority number must not be lower than its leader's");
  }
}

bool Scheduler::abort(SeqId seq) {
  const auto found = state_.requests.find(seq);
  if (found == state_.requests.end()) return false;
  Request& request = *found->second;
  if (!request.can_run()) {
    request.aborted = true;  // the outstanding step or transfer still writes to its blocks
    return true;
  }
  if (state_.queue.contains(&request)) {
    state_.queue.remove(&request);
  } else {
    state_.running.remove(&request);
  }
  state_.request_states.abort(request);
  state_.request_blocks.release(request);
  end(request);
  return true;
}

void Scheduler::fail(SeqId seq, bool forget) {
  const auto found = state_.requests.find(seq);
  if (found == state_.requests.end() || !found->second->is_planned()) {
    throw std::invalid_argument("sequence " + std::to_string(static_cast<int64_t>(seq)) +
                                " is no row of an outstanding plan; abort() ends it between two steps");
  }
  Request& request = *found->second;
  request.aborted = request.failed = true;
  request.forget = request.forget || forget;
}

void Scheduler::propose(SeqId seq, std::vector<int32_t> draft_tokens) {
  const auto found = state_.requests.find(seq);
  if (found == state_.requests.end() || !found->second->can_run() || !found->second->wants_decode()) {
    throw std::invalid_argument("sequence " + std::to_string(static_cast<int64_t>(seq)) +
                                " does not decode in the next step; draft tokens are for a sequence that has "
                                "sampled a token and is in no outstanding plan");
  }
  Request& request = *found->second;
  // A step leaves the state after all of its tokens, and wrong draft tokens must not be in it.
  const bool has_states = state_.blocks.states().is_used();
  const size_t most = has_states ? 0 : static_cast<size_t>(request.max_tokens - request.num_generated() - 1);
  draft_tokens.resize(std::min(draft_tokens.size(), most));
  request.draft_tokens = std::move(draft_tokens);
}

std::shared_ptr<Plan> Scheduler::plan(Lane lane, std::optional<double> now_s) {
  if (lane == Lane::kPrefill && !state_.config.has_prefill_lane()) {
    throw std::logic_error("plan() of the prefill lane, but without prefill_costs there is none");
  }
  if (steps_.computes(lane)) throw std::logic_error("plan() came before commit() of the previous plan");
  StepDraft draft(lane, state_.config.chunk_size, state_.request_blocks);
  const auto assign_lanes = [&] {
    return lanes_.assign(steps_.lane_state(state_.num_decode, state_.planner, now_s), lane);
  };
  if (lane == Lane::kDecode) {
    plan_decodes(draft);
    state_.num_decode = draft.num_tokens();
    plan_draft_tokens(draft);
    const int32_t num_prompts = assign_lanes();
    draft.set_budget(state_.planner.prompt_budget(state_.num_decode, num_prompts,
                                                  steps_.computes(Lane::kPrefill),
                                                  draft.num_tokens() - state_.num_decode));
  } else {
    const auto decodes = [](const Request* request) { return request->wants_decode(); };
    state_.num_decode =
        static_cast<int32_t>(std::count_if(state_.running.begin(), state_.running.end(), decodes));
    state_.running.assign_slots();
    assign_lanes();
    const bool is_held = lanes_.holds_pass(now_s, slot_releases_.interval_s());
    draft.set_budget(is_starved_ || is_held ? 0 : state_.config.prefill_chunk_size);
  }
  plan_prompts(draft);
  plan_states(lane);

  auto plan = std::make_shared<Plan>();
  std::vector<Request*> rows = write_rows(*plan, state_.running.requests(), lane, state_.config.block_tokens,
                                          state_.blocks.windows(), state_.blocks.states().is_used());
  plan->preempted = draft.preempted();
  if (lane == Lane::kDecode) {
    plan->was_predicted = predicted_ && have_same_rows(*plan, *predicted_);
    predicted_.reset();
  }
  steps_.begin(lane, plan, std::move(rows), now_s);
  return plan;
}

std::shared_ptr<Plan> Scheduler::plan_ahead() {
  const auto& [plan, rows, began_s, is_shared, is_mixed] = steps_[Lane::kDecode];
  if (state_.blocks.states().is_used()) return nullptr;
  if (!plan || predicted_ || rows.empty() || plan->num_decode != plan->num_tokens()) return nullptr;
  int32_t num_short = 0;
  for (const Request* request : rows) {
    const bool ends = request->num_generated() + 1 >= request->max_tokens;
    if (ends || request->aborted) return nullptr;
    num_short += state_.request_blocks.num_missing(*request, request->num_planned + 1);
  }
  if (state_.blocks.num_available() < num_short) return nullptr;
  predicted_ = std::make_shared<Plan>();
  for (Request* request : rows) {
    state_.request_blocks.acquire(*request, request->num_planned + 1);
    state_.request_blocks.acquire_windows(*request, request->num_planned + 1);
    request->num_planned_ahead = 1;
    const int32_t begin = request->num_computed + request->num_planned;
    append_row(*predicted_, *request, begin, begin + 1, state_.config.block_tokens, state_.blocks.windows());
  }
  return predicted_;
}

void Scheduler::plan_decodes(StepDraft& draft) {
  is_starved_ = false;
  state_.running.assign_slots();
  do {
    for (size_t i = 0; i < state_.running.size(); ++i) {
      Request& request = state_.running[i];
      if (!request.can_run() || !request.has_slot) continue;
      request.decodes = request.wants_decode();
      if (request.decodes && make_room(draft, i)) draft.add(request, 1);
    }
  } while (state_.running.assign_slots());  // those of preempted requests
}

// Draft tokens preempt no request. They leave each slot one token of chunk_size, so prompts continue.
void Scheduler::plan_draft_tokens(StepDraft& draft) {
  int32_t most = state_.config.chunk_size - state_.config.max_batch_size;
  for (Request* request : state_.running) {
    if (request->draft_tokens.empty() || !request->is_planned()) continue;
    int32_t num_tokens = std::min(most, static_cast<int32_t>(request->draft_tokens.size()));
    while (state_.blocks.num_available() < state_.request_blocks.num_missing(*request, 1 + num_tokens)) {
      --num_tokens;
    }
    request->draft_tokens.resize(static_cast<size_t>(num_tokens));
    draft.add(*request, num_tokens);
    most -= num_tokens;
  }
}

// Returns true if the request can get a block for one more token. May preempt requests, including this one.
bool Scheduler::make_room(StepDraft& draft, size_t index) {
  const Request& request = state_.running[index];
  while (state_.blocks.num_available() < state_.request_blocks.num_missing(request, 1)) {
    size_t victim = state_.running.size() - 1;
    while (!state_.running[victim].can_run()) --victim;
    if (victim == index && index + 1 < state_.running.size()) {
      is_starved_ = true;  // it waits for later requests, which are in a plan or fetch
      return false;
    }
    preempt(draft, victim);
    if (victim == index) return false;
  }
  return true;
}

void Scheduler::preempt(StepDraft& draft, size_t index) {
  Request& victim = state_.running[index];
  BALLAST_CHECK(!victim.is_planned());
  state_.running.remove(&victim);
  state_.queue.requeue(&victim);
  victim.num_computed = 0;
  victim.num_planned_ahead = 0;
  victim.decodes = false;
  victim.draft_tokens.clear();
  state_.request_states.preempt(victim);
  state_.request_blocks.release(victim);
  draft.note_preempted(victim.seq);
  ++num_preemptions_;
}

// Partly computed prompts continue in the order of service, then new ones are admitted. The first prompt that
// cannot be completed in this step first gets half of the budget, and then the tokens that the others leave.
void Scheduler::plan_prompts(StepDraft& draft) {
  Request* part_way = nullptr;
  for (Request* request : state_.running) {
    if (!request->continues_prompt() || !lanes_.is_assigned(*request, draft.lane())) continue;
    const int32_t num_tokens = request->num_uncomputed();
    int32_t most = draft.allowance(*request, draft.budget());
    if (part_way == nullptr && most < num_tokens) {
      part_way = request;
      most = draft.allowance(*request, draft.budget() - draft.budget() / 2);
    }
    draft.add(*request, std::min(num_tokens, most));
  }
  draft.set_part_way(part_way);
  if (!is_starved_) admission_.admit(draft, lanes_);
  if (part_way == nullptr) return;
  const int32_t num_left = part_way->num_uncomputed() - part_way->num_planned;
  draft.add(*part_way, std::min(num_left, draft.allowance(*part_way, draft.budget())));
}

// First what each row needs, then what is worth saving.
void Scheduler::plan_states(Lane lane) {
  if (!state_.blocks.states().is_used()) return;
  const auto for_rows = [&](const auto& plan) {
    for (Request* request : state_.running) {
      if (request->is_planned() && request->lane == lane) plan(*request);
    }
  };
  for_rows([&](Request& request) { state_.request_states.plan(request); });
  const int32_t num_without_slot = state_.running.num_without_slot();
  for_rows([&](Request& request) { state_.request_states.plan_saves(request, num_without_slot); });
}

std::shared_ptr<Committed> Scheduler::commit(const std::vector<int32_t>& sampled, Lane lane,
                                             std::optional<double> now_s) {
  const Plan* outstanding = steps_[lane].plan.get();
  if (outstanding == nullptr) throw std::logic_error("commit() came without a plan()");
  if (sampled.size() != outstanding->logits_at.size()) {
    throw std::invalid_argument("commit() got " + std::to_string(sampled.size()) +
                                " tokens for a plan that samples " +
                                std::to_string(outstanding->num_samples()));
  }
  const OutstandingSteps::Step step = steps_.end(lane);
  if (now_s && step.began_s && !step.is_mixed && step.computes()) {
    state_.planner.costs().observe(lane, step.is_shared, step.plan->num_tokens(), *now_s - *step.began_s);
  }
  auto committed = std::make_shared<Committed>();
  const int32_t* of_row = sampled.data();
  std::vector<Request*> done;
  for (Request* request : step.rows) {
    const int32_t num_samples = request->num_samples();
    request->num_computed += request->num_planned - request->num_planned_drafts();
    request->num_planned = 0;
    Finish finish = Finish::kNone;
    if (num_samples > 0 && !request->aborted) finish = append_sampled(*request, of_row, *committed);
    of_row += num_samples;
    if (!request->failed) state_.request_blocks.publish(*request);
    state_.request_states.commit(*request);
    if (!request->draft_tokens.empty()) {
      request->draft_tokens.clear();
      state_.request_blocks.release_after(*request, request->num_tokens());
    }
    if (finish != Finish::kNone || request->aborted) {
      if (request->aborted)
        state_.request_states.abort(*request);
      else
        state_.request_states.finish(*request);
      if (request->forget)
        state_.request_blocks.forget(*request);
      else
        state_.request_blocks.release(*request);
      done.push_back(request);
    }
  }
  for (Request* request : done) {
    state_.running.remove(request);
    end(*request);
  }
  state_.tiers.send_states();
  if (now_s) slot_releases_.note(static_cast<int32_t>(done.size()), *now_s);
  if (state_.running.empty()) slot_releases_.pause();
  return committed;
}

// Appends the tokens sampled for a row: the first one, and each next one while the draft token before it was
// right. The KV of draft tokens that were right is computed.
Finish Scheduler::append_sampled(Request& request, const int32_t* sampled, Committed& committed) {
  for (size_t i = 0;; ++i) {
    const Finish finish = append(request, sampled[i]);
    committed.seqs.push_back(request.seq);
    committed.tokens.push_back(sampled[i]);
    committed.finish.push_back(finish);
    const bool is_right = i < request.draft_tokens.size() && sampled[i] == request.draft_tokens[i];
    if (finish != Finish::kNone || !is_right) return finish;
    ++request.num_computed;
  }
}

Finish Scheduler::append(Request& request, int32_t token) {
  request.tokens.push_back(token);
  if (request.num_generated() >= request.min_tokens && request.stops_at(token)) return Finish::kStop;
  return request.num_generated() == request.max_tokens ? Finish::kLength : Finish::kNone;
}

std::vector<Transfer> Scheduler::take_transfers() { return state_.tiers.take_transfers(); }

Request& Scheduler::fetching(SeqId seq) const {
  const auto found = state_.requests.find(seq);
  if (found == state_.requests.end() || !found->second->is_fetching()) {
    throw std::invalid_argument("sequence " + std::to_string(static_cast<int64_t>(seq)) + " fetches nothing");
  }
  return *found->second;
}

void Scheduler::measured(int32_t tier, double block_seconds) {
  state_.tiers.set_block_seconds(tier, block_seconds);
}

void Scheduler::coming(SeqId seq, int32_t tier, int32_t num_blocks) {
  state_.tiers.set_coming(fetching(seq), tier, num_blocks);
}

bool Scheduler::is_worth_fetching(SeqId seq) const {
  return state_.tiers.is_worth_fetching(fetching(seq), state_.running.requests(), state_.planner,
                                        state_.num_decode);
}

void Scheduler::fetched(SeqId seq, int32_t num_blocks, Damage damage) {
  Request& request = fetching(seq);
  const int32_t num_found = state_.tiers.end_fetch(request, num_blocks, damage);
  state_.request_blocks.end_fetch(request, num_found > 0);
  const int32_t num_tokens = num_found * state_.config.block_tokens;
  if (request.aborted) {
    state_.running.remove(&request);
    state_.request_states.abort(request);
    state_.request_blocks.release(request);
    end(request);
    return;
  }
  request.num_computed += num_tokens;
  if (request.fetches_first) {
    request.num_cached_tokens += num_tokens;
    state_.prefix_hit_tokens += num_tokens;
  }
  state_.request_blocks.publish(request);
  state_.request_states.end_fetch(request, num_found > 0);
}

void Scheduler::stored(int32_t tier, bool is_whole) {
  state_.tiers.stored(tier, is_whole, state_.running.requests());
}

void Scheduler::stored_state(int32_t tier, bool is_whole) { state_.tiers.stored_state(tier, is_whole); }

void Scheduler::rest() {
  state_.tiers.states().rest();
  state_.tiers.send_states();
}

void Scheduler::restore(int32_t tier, const std::vector<BlockId>& blocks, const std::vector<BlockId>& parents,
                        const std::vector<int32_t>& tokens, const std::vector<Salt>& salts,
                        const std::vector<bool>& have_windows, const std::vector<StateSlot>& states) {
  state_.tiers.restore(tier, blocks, parents, tokens, salts, have_windows, states);
}

int32_t Scheduler::cached_tokens(SeqId seq) const {
  const auto found = state_.requests.find(seq);
  if (found == state_.requests.end()) {
    throw std::invalid_argument("sequence " + std::to_string(static_cast<int64_t>(seq)) + " is not live");
  }
  return found->second->num_cached_tokens;
}

Stats Scheduler::stats() const {
  Stats stats{};
  stats.waiting = static_cast<int64_t>(state_.queue.size()) + state_.running.num_without_slot();
  stats.running = state_.running.num_slots_used();
  stats.capacity_tokens = state_.config.capacity_tokens();
  stats.used_tokens = int64_t{state_.blocks.num_held()} * state_.config.block_tokens;
  stats.cached_tokens = int64_t{state_.blocks.num_cached()} * state_.config.block_tokens;
  stats.window_used_tokens = int64_t{state_.blocks.windows().num_needed()} * state_.config.block_tokens;
  stats.window_cached_tokens = int64_t{state_.blocks.windows().num_cached()} * state_.config.block_tokens;
  stats.preemptions = num_preemptions_;
  stats.prefix_query_tokens = state_.prefix_query_tokens;
  stats.prefix_hit_tokens = state_.prefix_hit_tokens;
  stats.prefix_cut_tokens = state_.prefix_cut_tokens;
  stats.snapshots = state_.blocks.states().num_snapshots();
  stats.snapshot_hits = state_.request_states.num_hits();
  stats.snapshots_evicted = state_.blocks.states().num_evicted();
  stats.state_slots = state_.blocks.states().num_slots();
  stats.state_slots_used = state_.blocks.states().num_held();
  stats.fetching =
      std::count_if(state_.running.begin(), state_.running.end(), [](auto* r) { return r->is_fetching(); });
  stats.unsent = state_.tiers.num_unsent();
  stats.tiers = state_.tiers.stats();
  return stats;
}

double Scheduler::next_prompt_step_s() {
  int64_t num_tokens = 0;
  for (size_t i = 0; i < std::min(state_.queue.size(), static_cast<size_t>(state_.config.max_batch_size));
       ++i) {
    if (!admission_.waits_for_leader(state_.queue[i])) num_tokens += admission_.match(state_.queue[i]);
  }
  const int64_t most = std::max(state_.config.prefill_chunk_size, state_.planner.idle_chunk());
  return state_.planner.prompt_seconds(static_cast<int32_t>(std::min(num_tokens, most)), 0);
}

QueueState Scheduler::queue_state(ReplyLength reply, double prompt_share, std::optional<double> now_s) const {
  const LaneState lanes = steps_.lane_state(state_.num_decode, state_.planner, now_s);
  QueueState state(state_.config, state_.planner, lanes, reply, slot_releases_.interval_s());
  state_.queue.rounds().for_each([&](int32_t priority, int64_t round) { state.set_round(priority, round); });
  const auto expected = [&](const Request& request) {
    return reply.expected(request.num_generated(), request.max_tokens - request.num_generated());
  };
  for (const Request* request : state_.running) {
    const int32_t prompt_left = request->wants_decode() ? 0 : request->num_uncomputed();
    QueueState::Running running{prompt_left, expected(*request), request->num_tokens()};
    running.num_in_flight = request->wants_decode() ? 0 : request->num_planned;
    running.lane = request->lane;
    state.add_running(running);
  }
  for (const Request* request : state_.queue) {
    const int32_t num_cached = static_cast<int32_t>(request->match.num_usable) * state_.config.block_tokens;
    int32_t num_tokens = request->num_tokens() - num_cached;
    if (admission_.waits_for_leader(*request))
      num_tokens = std::min(num_tokens, state_.config.block_tokens);
    else if (num_cached == 0)
      num_tokens = std::max(1, static_cast<int32_t>(num_tokens * prompt_share));
    state.add_waiting({request->priority, request->client, request->turn, num_tokens, request->num_tokens(),
                       expected(*request)});
  }
  return state;
}

std::vector<Description> Scheduler::describe(int64_t max_waiting) const {
  std::vector<Description> all;
  const auto describe = [&](const Request& r, const char* state) {
    all.push_back({r.seq, state, r.num_tokens(), r.num_computed, static_cast<int32_t>(r.blocks.size())});
  };
  for (const Request* r : state_.running)
    describe(*r, r->aborted          ? "aborted"
                 : r->is_fetching()  ? "fetching"
                 : !r->has_slot      ? "fetched"
                 : r->wants_decode() ? "decode"
                                     : "prefill");
  for (const Request* r : state_.queue) {
    if (max_waiting-- <= 0) break;
    describe(*r, r->admitted_before ? "preempted" : "waiting");
  }
  return all;
}

}  // namespace ballast
