#include "sched/scheduler.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"

namespace ballast {

namespace {

bool has_same_tables(const Plan& a, const Plan& b) {
  return a.seqs == b.seqs && a.query_indptr == b.query_indptr && a.positions == b.positions &&
         a.slots == b.slots && a.kv_indptr == b.kv_indptr && a.kv_indices == b.kv_indices;
}

// Most waiting requests that are looked at in a step; a look takes a microsecond where nothing has changed.
constexpr size_t kMostSkipped = 64;
// An overdue step is expected to need this fraction of its cost once more.
constexpr double kOverdueShare = 0.1;

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_((config.validate(), config)),
      planner_(config),
      blocks_(config.num_blocks, config.block_tokens, config.prefix_cache),
      tiers_(config, blocks_) {}

void Scheduler::add(SeqId seq, std::vector<int32_t> prompt, int64_t max_tokens,
                    std::vector<int32_t> stop_tokens, const AddOptions& options) {
  const std::string name = "sequence " + std::to_string(static_cast<int64_t>(seq));
  if (requests_.count(seq) != 0) throw std::invalid_argument(name + " is live already; ids must be unique");
  if (prompt.empty()) throw std::invalid_argument(name + " has an empty prompt; at least 1 token is needed");
  if (max_tokens < 1) {
    throw std::invalid_argument(name + " has max_tokens=" + std::to_string(max_tokens) +
                                "; at least 1 is needed");
  }
  const int64_t capacity = config_.capacity_tokens();
  const int64_t prompt_tokens = static_cast<int64_t>(prompt.size());
  if (prompt_tokens > capacity || max_tokens > capacity + 1 - prompt_tokens) {
    throw std::invalid_argument(name + " never fits: " + std::to_string(prompt_tokens) +
                                " prompt tokens and max_tokens=" + std::to_string(max_tokens) +
                                " need more than the " + std::to_string(capacity) + " tokens of KV cache");
  }
  if (options.leader) check_leader(name, options);
  if (queue_.num_new() >= config_.max_queue) {
    throw QueueFullError("the queue is full: max_queue=" + std::to_string(config_.max_queue) +
                         " requests wait");
  }

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
  request->tiers.resize(tiers_.size());
  queue_.enter(request.get());
  requests_.emplace(seq, std::move(request));
}

// A request that is in no queue any more and holds no block.
void Scheduler::end(const Request& request) {
  queue_.end(request.priority);
  requests_.erase(request.seq);
}

void Scheduler::check_leader(const std::string& name, const AddOptions& options) const {
  const auto leader = requests_.find(*options.leader);
  const std::string follows =
      name + " follows sequence " + std::to_string(static_cast<int64_t>(*options.leader));
  if (leader == requests_.end()) throw std::invalid_argument(follows + ", which is not live");
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
  const auto found = requests_.find(seq);
  if (found == requests_.end()) return false;
  Request& request = *found->second;
  if (!request.can_run()) {
    request.aborted = true;  // the outstanding step or transfer still writes to its blocks
    return true;
  }
  if (queue_.contains(&request)) {
    queue_.remove(&request);
  } else {
    running_.erase(std::find(running_.begin(), running_.end(), &request));
    release_slot(request);
  }
  release(request);
  end(request);
  return true;
}

void Scheduler::fail(SeqId seq, bool forget) {
  const auto found = requests_.find(seq);
  if (found == requests_.end() || !found->second->is_planned()) {
    throw std::invalid_argument("sequence " + std::to_string(static_cast<int64_t>(seq)) +
                                " is no row of an outstanding plan; abort() ends it between two steps");
  }
  Request& request = *found->second;
  request.aborted = request.failed = true;
  request.forget = request.forget || forget;
}

std::shared_ptr<Plan> Scheduler::plan(Lane lane, std::optional<double> now_s) {
  if (lane == Lane::kPrefill && !config_.has_prefill_lane()) {
    throw std::logic_error("plan() of the prefill lane, but without prefill_costs there is none");
  }
  if (is_outstanding(lane)) throw std::logic_error("plan() came before commit() of the previous plan");
  lane_ = lane;
  preempted_.clear();
  part_way_ = nullptr;
  num_planned_ = 0;
  auto plan = std::make_shared<Plan>();
  if (lane == Lane::kDecode) {
    plan_decodes();
    num_decode_ = num_planned_;
    assign_lanes(now_s);
    budget_ = planner_.prompt_budget(num_decode_, num_prompts_, is_outstanding(Lane::kPrefill));
  } else {
    const auto decodes = [](const Request* request) { return request->wants_decode(); };
    num_decode_ = static_cast<int32_t>(std::count_if(running_.begin(), running_.end(), decodes));
    budget_ = is_starved_ ? 0 : config_.prefill_chunk_size;
    assign_slots();
    assign_lanes(now_s);
    if (holds_pass(now_s)) budget_ = 0;
  }
  plan_prompts();

  fill(*plan);
  if (lane == Lane::kDecode) {
    plan->was_predicted = predicted_ && has_same_tables(*plan, *predicted_);
    predicted_.reset();
  }
  outstanding(lane).plan = plan;
  outstanding(lane).began_s = now_s;
  outstanding(lane).in_pass = lane == Lane::kDecode && is_outstanding(Lane::kPrefill);
  outstanding(lane).is_mixed = false;
  if (lane == Lane::kPrefill && is_outstanding(lane)) outstanding(Lane::kDecode).is_mixed = true;
  return plan;
}

std::shared_ptr<Plan> Scheduler::plan_ahead() {
  const auto& plan = outstanding(Lane::kDecode).plan;
  const auto& rows = outstanding(Lane::kDecode).rows;
  if (!plan || predicted_ || rows.empty() || plan->num_decode != plan->num_requests()) return nullptr;
  int32_t num_short = 0;
  for (const Request* request : rows) {
    const bool ends = request->num_generated() + 1 >= request->max_tokens;
    if (ends || request->aborted) return nullptr;
    num_short += blocks_short(*request, request->num_planned + 1);
  }
  if (blocks_.num_available() < num_short) return nullptr;
  predicted_ = std::make_shared<Plan>();
  predicted_->query_indptr.push_back(0);
  predicted_->kv_indptr.push_back(0);
  for (Request* request : rows) {
    take_blocks(*request, request->num_planned + 1);
    request->num_planned_ahead = 1;
    const int32_t begin = request->num_computed + request->num_planned;
    append_row(*predicted_, *request, begin, begin + 1);
  }
  return predicted_;
}

void Scheduler::plan_decodes() {
  is_starved_ = false;
  assign_slots();
  do {
    for (size_t i = 0; i < running_.size(); ++i) {
      Request& request = *running_[i];
      if (!request.can_run() || !request.has_slot) continue;
      request.decodes = request.wants_decode();
      if (request.decodes && make_room(i)) schedule(request, 1);
    }
  } while (assign_slots());  // those of preempted requests
}

// Gives free slots to the requests that have fetched their blocks, in their order. Returns whether any got
// one.
bool Scheduler::assign_slots() {
  const int32_t num_before = num_slots_used_;
  for (Request* request : running_) {
    if (num_slots_used_ == config_.max_batch_size) break;
    if (request->can_run() && !request->has_slot) acquire_slot(*request);
  }
  return num_slots_used_ > num_before;
}

void Scheduler::acquire_slot(Request& request) {
  request.has_slot = true;
  ++num_slots_used_;
}

void Scheduler::release_slot(Request& request) {
  num_slots_used_ -= request.has_slot;
  request.has_slot = false;
}

// Returns true if the request can get a block for one more token. May preempt requests, including this one.
bool Scheduler::make_room(size_t index) {
  const Request& request = *running_[index];
  while (blocks_.num_available() < blocks_short(request, 1)) {
    size_t victim = running_.size() - 1;
    while (!running_[victim]->can_run()) --victim;
    if (victim == index && index + 1 < running_.size()) {
      is_starved_ = true;  // it waits for those behind it, which are in a plan or fetch
      return false;
    }
    preempt(victim);
    if (victim == index) return false;
  }
  return true;
}

// Seconds until the outstanding step of a lane ends, by its cost; 0 if there is none.
double Scheduler::seconds_left(Lane lane, std::optional<double> now_s) const {
  if (!is_outstanding(lane)) return 0.0;
  const Outstanding& step = outstanding(lane);
  const CostCurve& costs =
      lane == Lane::kPrefill ? planner_.costs().prefill() : planner_.costs().decode(step.in_pass);
  const double cost_s = costs.seconds(step.plan->num_tokens());
  if (!now_s || !step.began_s) return cost_s;
  return std::max(cost_s - (*now_s - *step.began_s), kOverdueShare * cost_s);
}

LaneState Scheduler::lane_state(std::optional<double> now_s) const {
  LaneState state{num_decode_, seconds_left(Lane::kDecode, now_s), seconds_left(Lane::kPrefill, now_s)};
  if (is_outstanding(Lane::kDecode)) {
    const Outstanding& step = outstanding(Lane::kDecode);
    const bool has_prompts = step.plan->num_decode < step.plan->num_requests();
    state.uses_link = has_prompts && planner_.uses_link(step.plan->num_tokens(), step.in_pass);
  }
  return state;
}

// Divides the prompts that could be computed now between the lanes: those of running requests, and of as many
// waiting ones as slots and blocks are free for. With two lanes no other waiting request is admitted, so
// requests that wait for the other lane keep their slots.
void Scheduler::assign_lanes(std::optional<double> now_s) {
  ++num_plans_;
  num_prompts_ = 0;
  std::vector<Request*> candidates;
  std::vector<int32_t> prompts;
  const auto consider = [&](Request& request, int32_t num_tokens) {
    candidates.push_back(&request);
    prompts.push_back(num_tokens);
  };
  for (Request* request : running_) {
    if (continues_prompt(*request) && !request->scores_prompt) consider(*request, request->num_uncomputed());
  }
  int32_t num_free = config_.max_batch_size - num_slots_used_;
  int32_t num_blocks = blocks_.num_available();
  for (size_t i = 0; i < std::min(queue_.size(), kMostSkipped) && num_free > 0; ++i) {
    Request& request = queue_[i];
    if (waits_for_leader(request)) continue;
    // Without a second lane only the number of prompts counts, so nothing is looked up.
    const int32_t num_tokens = config_.has_prefill_lane() ? match(request) : request.num_tokens();
    num_blocks -= blocks_to_admit(request) - static_cast<int32_t>(request.match.blocks.size());
    if (num_blocks < 0) break;
    if (!request.scores_prompt) consider(request, num_tokens);
    num_free -= request.found.empty();  // a request that will fetch needs no slot now
  }
  const std::vector<Lane> lanes = planner_.assign_lanes(lane_state(now_s), prompts);
  for (size_t i = 0; i < candidates.size(); ++i) {
    candidates[i]->prompt_lane = lanes[i];
    candidates[i]->lane_plan = num_plans_;
    num_prompts_ += lanes[i] == lane_;
  }
}

// Whether the prompts of the prefill lane wait for further ones, for which slots become free soon.
bool Scheduler::holds_pass(std::optional<double> now_s) {
  const auto count = std::count_if(queue_.begin(), queue_.end(),
                                   [&](const Request* request) { return is_assigned(*request); });
  const bool is_part_way = std::any_of(running_.begin(), running_.end(), [&](const Request* request) {
    return continues_prompt(*request) && is_assigned(*request);
  });
  const auto num_free = static_cast<size_t>(config_.max_batch_size - num_slots_used_);
  const int32_t num_prompts = static_cast<int32_t>(count);
  if (!now_s || num_prompts == 0 || is_part_way || queue_.size() <= num_free) {
    held_since_s_.reset();
    return false;
  }
  const double held_s = *now_s - held_since_s_.value_or(*now_s);
  if (!planner_.holds_pass(num_decode_, num_prompts, held_s, slot_releases_.interval_s())) {
    held_since_s_.reset();
    return false;
  }
  held_since_s_ = held_since_s_.value_or(*now_s);
  return true;
}

// Whether the step that is planned is to compute a request's prompt.
bool Scheduler::is_assigned(const Request& request) const {
  if (request.scores_prompt || !config_.has_prefill_lane()) return lane_ == Lane::kDecode;
  return request.lane_plan == num_plans_ && request.prompt_lane == lane_;
}

// Whether a running request has prompt tokens that a step can take now.
bool Scheduler::continues_prompt(const Request& request) const {
  return request.can_run() && request.has_slot && !request.wants_decode();
}

// Prompts that are partly computed continue in their order, then others are admitted. The first one that
// cannot be completed in this step leaves half of the budget to those behind it, and takes what they leave.
void Scheduler::plan_prompts() {
  Request* part_way = nullptr;
  for (Request* request : running_) {
    if (!continues_prompt(*request)) continue;
    const int32_t num_tokens = request->num_uncomputed();
    if (!is_assigned(*request)) continue;
    int32_t most = allowance(*request, budget_);
    if (part_way == nullptr && most < num_tokens) {
      part_way = request;
      most = allowance(*request, budget_ - budget_ / 2);
    }
    schedule(*request, std::min(num_tokens, most));
  }
  part_way_ = part_way;
  admit();
  if (part_way == nullptr) return;
  schedule(*part_way,
           std::min(part_way->num_uncomputed() - part_way->num_planned, allowance(*part_way, budget_)));
}

// The part of a budget that a request may take, 0 or more: scored prompts together take at most chunk_size
// per step, since the logits of all their tokens are in memory at the same time.
int32_t Scheduler::allowance(const Request& request, int32_t budget) const {
  if (!request.scores_prompt) return budget;
  return std::max(0, std::min(budget, config_.chunk_size - num_planned_));
}

void Scheduler::admit() {
  const Request* skipped = nullptr;  // the first one
  size_t num_skipped = 0;
  while (!is_starved_ && budget_ > 0 && num_skipped < std::min(queue_.size(), kMostSkipped)) {
    Request& request = queue_[num_skipped];
    if (num_slots_used_ == config_.max_batch_size || allowance(request, budget_) == 0) return;
    // A request that this plan preempted returns in a later one, after those that needed its room.
    if (std::find(preempted_.begin(), preempted_.end(), request.seq) != preempted_.end()) return;
    if (waits_for_leader(request) || !fits_in_step(request) || waits_to_fetch(request)) {
      if (skipped == nullptr && !leader_has_no_slot(request)) skipped = &request;
      ++num_skipped;
      continue;
    }
    // A request that will fetch needs no slot now.
    const bool is_slot_reserved = skipped != nullptr && skipped->found.empty() && request.found.empty();
    if (num_slots_used_ + is_slot_reserved == config_.max_batch_size) return;
    const int32_t num_reserved = skipped == nullptr ? 0 : blocks_to_admit(*skipped);
    const int32_t num_available = blocks_.num_available() - blocks_.num_unheld(request.match) - num_reserved;
    if (blocks_to_admit(request) - static_cast<int32_t>(request.match.blocks.size()) > num_available) return;
    queue_.admit(num_skipped);
    start(request);
  }
}

// Looks a waiting request's prefix up in the cache and the tiers; returns the tokens that are left to
// compute.
int32_t Scheduler::match(Request& request) const {
  if (!request.scores_prompt) {
    blocks_.match(request.tokens, request.salt, request.match);
    tiers_.match(request, planner_, num_decode_);
  }
  const size_t num_blocks = request.match.blocks.size() + request.found.size();
  return request.num_tokens() - static_cast<int32_t>(num_blocks) * config_.block_tokens;
}

// Whether a waiting request belongs in this step, if there is room for it. While a prompt is partly computed,
// only much shorter ones do: they end soon and delay it little.
bool Scheduler::fits_in_step(Request& request) const {
  if (!is_assigned(request)) return false;
  const int32_t num_tokens = match(request);
  return part_way_ == nullptr ||
         int64_t{num_tokens} * kJoiningShare <= part_way_->num_uncomputed() - part_way_->num_planned;
}

// One block more than the tokens take, so that the request is not preempted immediately; but at most what it
// can ever need: otherwise a request as large as the cache would never be admitted.
int32_t Scheduler::blocks_to_admit(const Request& request) const {
  return std::min(blocks_for(request.num_tokens()) + 1, blocks_for(request.num_kv_tokens_at_most()));
}

// A request that was just taken out of the queue begins to run.
void Scheduler::start(Request& request) {
  const int32_t num_matched = static_cast<int32_t>(request.match.blocks.size());
  blocks_.hold(request.match.blocks);
  request.blocks = std::move(request.match.blocks);
  request.match = {};
  request.num_published = num_matched;
  request.num_computed = num_matched * config_.block_tokens;
  request.fetches_first = !request.admitted_before;
  if (!request.admitted_before) {
    request.admitted_before = true;
    request.num_cached_tokens = request.num_computed;
    prefix_hit_tokens_ += request.num_computed;
    if (config_.prefix_cache && !request.scores_prompt) prefix_query_tokens_ += request.prompt_tokens;
  }
  insert_in_order(running_, &request);
  take_blocks(request, request.num_uncomputed());
  tiers_.begin_fetch(request);
  if (request.is_fetching()) return;
  acquire_slot(request);
  schedule(request, std::min(request.num_uncomputed(), allowance(request, budget_)));
  if (part_way_ == nullptr && request.num_planned < request.num_uncomputed()) part_way_ = &request;
}

// A leader waits at most for room, and no room is reserved for its followers at its expense, so this ends.
bool Scheduler::waits_for_leader(const Request& request) const {
  if (!request.leader) return false;
  const auto leader = requests_.find(*request.leader);
  return leader != requests_.end() && !leader->second->aborted && leader->second->num_generated() == 0;
}

// Whether a request waits for a leader that waits as well: room that is reserved for the follower would be
// missing for the leader. A leader of another client may have a later turn.
bool Scheduler::leader_has_no_slot(const Request& request) const {
  return waits_for_leader(request) && !requests_.at(*request.leader)->has_slot;
}

// Whether a request whose prefix continues in tiers waits until fewer others fetch: they hold blocks that
// decoding may need.
bool Scheduler::waits_to_fetch(const Request& request) const {
  const size_t num_fetching = running_.size() - static_cast<size_t>(num_slots_used_);
  return !request.found.empty() && num_fetching >= static_cast<size_t>(config_.max_batch_size);
}

int32_t Scheduler::blocks_for(int32_t num_tokens) const {
  return (num_tokens - 1) / config_.block_tokens + 1;  // num_tokens >= 1; no sum that could overflow
}

// Blocks that the request needs in addition to compute num_tokens more.
int32_t Scheduler::blocks_short(const Request& request, int32_t num_tokens) const {
  return std::max(
      0, blocks_for(request.num_computed + num_tokens) - static_cast<int32_t>(request.blocks.size()));
}

// Plans num_tokens more of a request, 0 or more; the blocks for them must be there.
void Scheduler::schedule(Request& request, int32_t num_tokens) {
  request.num_planned += num_tokens;
  take_blocks(request, request.num_planned);
  request.num_planned_ahead = 0;
  request.lane = lane_;
  budget_ -= num_tokens;
  num_planned_ += num_tokens;
}

void Scheduler::take_blocks(Request& request, int32_t num_tokens) {
  for (int32_t missing = blocks_short(request, num_tokens); missing > 0; --missing) {
    tiers_.note_evicted(blocks_.next_evicted());
    request.blocks.push_back(blocks_.allocate());
  }
}

void Scheduler::preempt(size_t index) {
  Request& victim = *running_[index];
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  queue_.requeue(&victim);
  release_slot(victim);
  BALLAST_CHECK(!victim.is_planned());
  victim.num_computed = 0;
  victim.num_planned_ahead = 0;
  victim.decodes = false;
  release(victim);
  preempted_.push_back(victim.seq);
  ++num_preemptions_;
}

void Scheduler::fill(Plan& plan) {
  const auto is_row = [&](const Request* request) { return request->is_planned() && request->lane == lane_; };
  size_t num_rows = 0, num_tokens = 0, num_blocks = 0;
  for (const Request* request : running_) {
    if (!is_row(request)) continue;
    ++num_rows;
    num_tokens += static_cast<size_t>(request->num_planned);
    num_blocks += request->blocks.size();
  }
  plan.seqs.reserve(num_rows);
  plan.kv_lens.reserve(num_rows);
  plan.samples.reserve(num_rows);
  plan.query_indptr.reserve(num_rows + 1);
  plan.kv_indptr.reserve(num_rows + 1);
  plan.token_ids.reserve(num_tokens);
  plan.positions.reserve(num_tokens);
  plan.slots.reserve(num_tokens);
  plan.kv_indices.reserve(num_blocks);

  plan.query_indptr.push_back(0);
  plan.kv_indptr.push_back(0);
  std::vector<Request*>& rows = outstanding(lane_).rows;
  rows.clear();
  const auto append = [&](Request& request) {
    append_row(plan, request, request.num_computed, request.num_computed + request.num_planned);
    plan.samples.push_back(request.samples());
    plan.num_samples += request.samples();
    rows.push_back(&request);
  };
  for (Request* request : running_) {
    if (is_row(request) && request->decodes) append(*request);
  }
  plan.num_decode = plan.num_requests();
  for (Request* request : running_) {
    if (is_row(request) && !request->decodes) append(*request);
  }
  plan.preempted = preempted_;
}

// Tokens begin…end of a request; those that are not known yet are 0.
void Scheduler::append_row(Plan& plan, const Request& request, int32_t begin, int32_t end) const {
  plan.seqs.push_back(request.seq);
  for (int32_t position = begin; position < end; ++position) {
    const bool is_known = position < request.num_tokens();
    const BlockId block = request.blocks[static_cast<size_t>(position / config_.block_tokens)];
    plan.token_ids.push_back(is_known ? request.tokens[static_cast<size_t>(position)] : 0);
    plan.positions.push_back(position);
    plan.slots.push_back(static_cast<int32_t>(block) * config_.block_tokens +
                         position % config_.block_tokens);
  }
  plan.query_indptr.push_back(plan.num_tokens());
  plan.kv_indices.insert(plan.kv_indices.end(), request.blocks.begin(),
                         request.blocks.begin() + blocks_for(end));
  plan.kv_indptr.push_back(static_cast<int32_t>(plan.kv_indices.size()));
  plan.kv_lens.push_back(end);
}

std::shared_ptr<Committed> Scheduler::commit(const std::vector<int32_t>& sampled, Lane lane,
                                             std::optional<double> now_s) {
  auto& [plan, rows, began_s, in_pass, is_mixed] = outstanding(lane);
  if (!plan) throw std::logic_error("commit() came without a plan()");
  if (sampled.size() != static_cast<size_t>(plan->num_samples)) {
    throw std::invalid_argument("commit() got " + std::to_string(sampled.size()) +
                                " tokens for a plan that samples " + std::to_string(plan->num_samples));
  }
  if (lane == Lane::kPrefill) outstanding(Lane::kDecode).is_mixed = true;
  if (now_s && began_s && !is_mixed && plan->num_tokens() > 0) {
    planner_.costs().observe(lane, in_pass, plan->num_tokens(), *now_s - *began_s);
  }
  auto committed = std::make_shared<Committed>();
  auto token = sampled.begin();
  std::vector<const Request*> done;
  for (Request* request : rows) {
    const bool samples = request->samples();
    request->num_computed += request->num_planned;
    request->num_planned = 0;
    if (!request->failed) publish(*request);
    Finish finish = Finish::kNone;
    if (samples && !request->aborted) {
      finish = append_sampled(*request, *token);
      committed->seqs.push_back(request->seq);
      committed->tokens.push_back(*token);
      committed->finish.push_back(finish);
    }
    token += samples;
    if (finish != Finish::kNone || request->aborted) {
      if (request->forget)
        forget(*request);
      else
        release(*request);
      release_slot(*request);
      done.push_back(request);
    }
  }
  const auto is_done = [&](const Request* r) { return std::find(done.begin(), done.end(), r) != done.end(); };
  if (!done.empty())
    running_.erase(std::remove_if(running_.begin(), running_.end(), is_done), running_.end());
  for (const Request* request : done) end(*request);
  if (now_s) slot_releases_.note(static_cast<int32_t>(done.size()), *now_s);
  if (running_.empty()) slot_releases_.pause();
  plan.reset();
  rows.clear();
  return committed;
}

void Scheduler::publish(Request& request) {
  const int32_t num_full = request.num_computed / config_.block_tokens;
  for (; request.num_published < num_full; ++request.num_published) {
    blocks_.publish(request.blocks, static_cast<size_t>(request.num_published), request.tokens, request.salt);
  }
  tiers_.mirror(request);
}

Finish Scheduler::append_sampled(Request& request, int32_t token) const {
  request.tokens.push_back(token);
  if (request.num_generated() >= request.min_tokens && request.stops_at(token)) return Finish::kStop;
  return request.num_generated() == request.max_tokens ? Finish::kLength : Finish::kNone;
}

void Scheduler::release(Request& request) {
  tiers_.release(request);
  blocks_.release(request.blocks);
}

// Hides all blocks that a request has read or written, in the cache and in the tiers, from other requests.
void Scheduler::forget(Request& request) {
  const bool is_published = request.num_published > 0 && !blocks_.is_hidden(request.blocks.front());
  blocks_.discard(request.blocks);
  tiers_.forget(request, is_published);
}

std::vector<Transfer> Scheduler::take_transfers() { return tiers_.take_transfers(); }

Request& Scheduler::fetching(SeqId seq) const {
  const auto found = requests_.find(seq);
  if (found == requests_.end() || !found->second->is_fetching()) {
    throw std::invalid_argument("sequence " + std::to_string(static_cast<int64_t>(seq)) + " fetches nothing");
  }
  return *found->second;
}

void Scheduler::measured(int32_t tier, double block_seconds) {
  tiers_.set_block_seconds(tier, block_seconds);
}

void Scheduler::coming(SeqId seq, int32_t tier, int32_t num_blocks) {
  tiers_.set_coming(fetching(seq), tier, num_blocks);
}

bool Scheduler::is_worth_fetching(SeqId seq) const {
  return tiers_.is_worth_fetching(fetching(seq), running_, planner_, num_decode_);
}

void Scheduler::fetched(SeqId seq, int32_t num_blocks, bool is_damaged) {
  Request& request = fetching(seq);
  const int32_t num_tokens = tiers_.end_fetch(request, num_blocks, is_damaged) * config_.block_tokens;
  if (request.aborted) {
    running_.erase(std::find(running_.begin(), running_.end(), &request));
    release(request);
    end(request);
    return;
  }
  request.num_computed += num_tokens;
  if (request.fetches_first) {
    request.num_cached_tokens += num_tokens;
    prefix_hit_tokens_ += num_tokens;
  }
  publish(request);
}

void Scheduler::stored(int32_t tier, bool is_whole) { tiers_.stored(tier, is_whole, running_); }

void Scheduler::restore(int32_t tier, const std::vector<BlockId>& blocks, const std::vector<BlockId>& parents,
                        const std::vector<int32_t>& tokens, const std::vector<Salt>& salts) {
  tiers_.restore(tier, blocks, parents, tokens, salts);
}

int32_t Scheduler::cached_tokens(SeqId seq) const {
  const auto found = requests_.find(seq);
  if (found == requests_.end()) {
    throw std::invalid_argument("sequence " + std::to_string(static_cast<int64_t>(seq)) + " is not live");
  }
  return found->second->num_cached_tokens;
}

Stats Scheduler::stats() const {
  Stats stats{};
  stats.waiting = static_cast<int64_t>(queue_.size() + running_.size()) - num_slots_used_;
  stats.running = num_slots_used_;
  stats.capacity_tokens = config_.capacity_tokens();
  stats.used_tokens = int64_t{blocks_.num_held()} * config_.block_tokens;
  stats.cached_tokens = int64_t{blocks_.num_cached()} * config_.block_tokens;
  stats.preemptions = num_preemptions_;
  stats.prefix_query_tokens = prefix_query_tokens_;
  stats.prefix_hit_tokens = prefix_hit_tokens_;
  stats.fetching = std::count_if(running_.begin(), running_.end(), [](auto* r) { return r->is_fetching(); });
  stats.unsent = tiers_.num_unsent();
  stats.tiers = tiers_.stats();
  return stats;
}

double Scheduler::next_prompt_step_s() {
  int64_t num_tokens = 0;
  for (size_t i = 0; i < std::min(queue_.size(), static_cast<size_t>(config_.max_batch_size)); ++i) {
    if (!waits_for_leader(queue_[i])) num_tokens += match(queue_[i]);
  }
  const int64_t most = std::max(config_.prefill_chunk_size, planner_.idle_chunk());
  return planner_.prompt_seconds(static_cast<int32_t>(std::min(num_tokens, most)), 0);
}

QueueState Scheduler::queue_state(ReplyLength reply, double prompt_share, std::optional<double> now_s) const {
  LaneState lanes = lane_state(now_s);
  QueueState state(config_, planner_, lanes, reply, slot_releases_.interval_s());
  queue_.rounds().for_each([&](int32_t priority, int64_t round) { state.set_round(priority, round); });
  const auto expected = [&](const Request& request) {
    return reply.expected(request.num_generated(), request.max_tokens - request.num_generated());
  };
  for (const Request* request : running_) {
    const int32_t prompt_left = request->wants_decode() ? 0 : request->num_uncomputed();
    QueueState::Running running{prompt_left, expected(*request), request->num_tokens()};
    running.num_in_flight = request->wants_decode() ? 0 : request->num_planned;
    running.lane = request->lane;
    state.add_running(running);
  }
  for (const Request* request : queue_) {
    const int32_t num_cached = static_cast<int32_t>(request->match.blocks.size()) * config_.block_tokens;
    int32_t num_tokens = request->num_tokens() - num_cached;
    if (waits_for_leader(*request))
      num_tokens = std::min(num_tokens, config_.block_tokens);
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
  for (const Request* r : running_)
    describe(*r, r->aborted          ? "aborted"
                 : r->is_fetching()  ? "fetching"
                 : !r->has_slot      ? "fetched"
                 : r->wants_decode() ? "decode"
                                     : "prefill");
  for (const Request* r : queue_) {
    if (max_waiting-- <= 0) break;
    describe(*r, r->admitted_before ? "preempted" : "waiting");
  }
  return all;
}

void Scheduler::check() const {
  BALLAST_CHECK(requests_.size() == running_.size() + queue_.size());
  BALLAST_CHECK(num_slots_used_ <= config_.max_batch_size);
  BALLAST_CHECK(running_.size() - static_cast<size_t>(num_slots_used_) <=
                static_cast<size_t>(config_.max_batch_size));
  std::vector<int32_t> owners(static_cast<size_t>(config_.num_blocks) + 1, 0);
  const Request* last = nullptr;
  int32_t num_slots_used = 0;
  const auto check_live = [&](const Request& request) {
    const auto found = requests_.find(request.seq);
    BALLAST_CHECK(found != requests_.end() && found->second.get() == &request);
    BALLAST_CHECK(request.num_generated() < request.max_tokens);
  };
  for (const Request* request : running_) {
    check_live(*request);
    BALLAST_CHECK(last == nullptr || last->comes_before(*request));
    last = request;
    const int32_t num_covered = request->num_computed + request->num_planned;
    const int32_t num_planned_ahead = request->num_planned_ahead;
    BALLAST_CHECK(num_covered <= request->num_tokens() && request->num_computed < request->num_tokens());
    // All tokens have blocks, except that the block of a token to decode may be taken only when it is
    // planned.
    const int32_t num_blocks = static_cast<int32_t>(request->blocks.size());
    const bool decodes = request->wants_decode();
    BALLAST_CHECK(num_blocks <= blocks_for(request->num_tokens() + num_planned_ahead));
    BALLAST_CHECK(num_blocks >=
                  blocks_for((decodes ? num_covered : request->num_tokens()) + num_planned_ahead));
    BALLAST_CHECK(request->num_published == request->num_computed / config_.block_tokens);
    BALLAST_CHECK(request->admitted_before);
    BALLAST_CHECK(!request->can_run() || !request->aborted);
    BALLAST_CHECK(!request->is_fetching() || !request->has_slot);
    BALLAST_CHECK(!request->is_planned() || request->has_slot);
    num_slots_used += request->has_slot;
    BALLAST_CHECK(request->num_published + static_cast<int32_t>(request->fetches.size()) <=
                  (request->num_tokens() - 1) / config_.block_tokens);
    const Outstanding& step = outstanding(request->lane);
    const bool is_row =
        step.plan && std::find(step.rows.begin(), step.rows.end(), request) != step.rows.end();
    BALLAST_CHECK(is_row == request->is_planned());
    blocks_.check_published(request->blocks, static_cast<size_t>(request->num_published), request->tokens,
                            request->salt);
    for (const BlockId block : request->blocks) ++owners[index_of(block)];
  }
  BALLAST_CHECK(num_slots_used == num_slots_used_);
  for (const Request* request : queue_) {
    check_live(*request);
    BALLAST_CHECK(request->blocks.empty() && request->num_computed == 0 && request->num_planned == 0);
    BALLAST_CHECK(!request->aborted && !request->has_slot);
    for (const TierTable& tier : request->tiers) BALLAST_CHECK(tier.blocks.empty());
  }
  queue_.check();
  BALLAST_CHECK(queue_.num_new() <= config_.max_queue);
  blocks_.check(owners);
  tiers_.check(running_);
}

}  // namespace ballast
