#include "sched/scheduler.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"
#include "sched/lane.h"

namespace ballast {

namespace {

void require(bool works, const char* field, int64_t value, const std::string& way_out) {
  if (!works) throw std::invalid_argument(std::string(field) + "=" + std::to_string(value) + ": " + way_out);
}

bool has_same_tables(const Plan& a, const Plan& b) {
  return a.seqs == b.seqs && a.query_indptr == b.query_indptr && a.positions == b.positions &&
         a.slots == b.slots && a.kv_indptr == b.kv_indptr && a.kv_indices == b.kv_indices;
}

// Most waiting requests that are passed in a step: a look at each takes time, a microsecond where nothing has
// changed.
constexpr size_t kMostPassed = 64;
// A prompt joins one that is part-way where it has at most one in so many of the tokens that that one has
// left.
constexpr int32_t kJoiningShare = 4;

template <class Requests>
void insert_in_order(Requests& requests, Request* request) {
  const auto before = [](const Request* a, const Request* b) { return a->comes_before(*b); };
  requests.insert(std::upper_bound(requests.begin(), requests.end(), request, before), request);
}

}  // namespace

void SchedulerConfig::validate() const {
  require(num_blocks >= 1, "num_blocks", num_blocks, "at least 1 block is needed");
  require(block_tokens >= 1, "block_tokens", block_tokens, "a block holds at least 1 token");
  require((int64_t{num_blocks} + 1) * block_tokens <= std::numeric_limits<int32_t>::max(), "num_blocks",
          num_blocks,
          "with block_tokens=" + std::to_string(block_tokens) + " the slots do not fit in 32 bits");
  require(max_batch_size >= 1, "max_batch_size", max_batch_size, "at least 1 request must run");
  require(chunk_size >= max_batch_size, "chunk_size", chunk_size,
          "at least max_batch_size=" + std::to_string(max_batch_size) +
              ", one token for each request that decodes");
  require(prefill_chunk_size >= 1, "prefill_chunk_size", prefill_chunk_size,
          "a step computes at least 1 token");
  require(!max_stall_s || *max_stall_s >= 0.0, "max_stall_s", static_cast<int64_t>(max_stall_s.value_or(0.0)),
          "prompts cannot make a step shorter");
  require(max_queue >= 1, "max_queue", max_queue, "at least 1 request must be able to wait");
  require(tiers.empty() || prefix_cache, "tiers", static_cast<int64_t>(tiers.size()),
          "they hold what the prefix cache knows, and there is none");
  for (const TierConfig& tier : tiers) {
    require(tier.num_blocks >= 1, "tiers", tier.num_blocks, "a tier has at least 1 block");
    require(tier.most_storing >= 1, "tiers", tier.most_storing, "at least 1 block is on its way");
  }
}

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_((config.validate(), config)),
      blocks_(config.num_blocks, config.block_tokens, config.prefix_cache),
      speeds_(config.tiers.size()),
      fetched_tokens_(config.tiers.size(), 0),
      dropped_tokens_(config.tiers.size(), 0),
      sent_(config.tiers.size(), std::vector<uint64_t>(static_cast<size_t>(config.num_blocks) + 1, 0)) {
  for (const TierConfig& tier : config.tiers) tiers_.emplace_back(tier, config.block_tokens);
}

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
  if (num_new_waiting_ >= config_.max_queue) {
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
  request->turn = turn_of(*request);
  request->scores_prompt = options.scores_prompt;
  request->stop_tokens = std::move(stop_tokens);
  request->tiers.resize(tiers_.size());
  insert_in_order(waiting_, request.get());
  ++num_new_waiting_;
  rounds_.enter(request->priority);
  requests_.emplace(seq, std::move(request));
}

// The turn of a request that comes: its leader's, else one in the next round in which its client has none.
Turn Scheduler::turn_of(const Request& request) const {
  if (request.leader) {
    const Request& leader = *requests_.at(*request.leader);
    if (leader.shares_queue_with(request)) return leader.turn;
  }
  int64_t last_round = rounds_.now(request.priority);
  for (auto other = waiting_.rbegin(); other != waiting_.rend(); ++other) {
    if ((*other)->priority < request.priority) break;
    if ((*other)->shares_queue_with(request)) {
      last_round = std::max(last_round, (*other)->turn.round);
      break;
    }
  }
  return {last_round + 1, request.arrival};
}

// A request has left the queue without having run. If its turn is in a round to come and nobody else has it,
// the client's next requests move up by one turn each.
void Scheduler::hand_turns_down(const Request& leaver) {
  if (leaver.turn.round <= rounds_.now(leaver.priority)) return;
  Turn free = leaver.turn, moved = leaver.turn;
  bool is_moved = false;
  for (Request* request : waiting_) {
    if (!request->shares_queue_with(leaver) || request->turn < leaver.turn) continue;
    if (request->turn == leaver.turn) return;
    if (request->turn != moved) {
      if (is_moved) free = moved;
      moved = request->turn;
      is_moved = true;
    }
    request->turn = free;
  }
  const auto before = [](const Request* a, const Request* b) { return a->comes_before(*b); };
  if (is_moved) std::sort(waiting_.begin(), waiting_.end(), before);
}

// A request that is in no queue any more, and holds no block.
void Scheduler::end(const Request& request) {
  rounds_.leave(request.priority);
  requests_.erase(request.seq);
}

void Scheduler::check_leader(const std::string& name, const AddOptions& options) const {
  const auto leader = requests_.find(*options.leader);
  const std::string follows =
      name + " follows sequence " + std::to_string(static_cast<int64_t>(*options.leader));
  if (leader == requests_.end()) throw std::invalid_argument(follows + ", which is not live");
  if (options.priority < leader->second->priority) {
    throw std::invalid_argument(
        follows + " of priority " + std::to_string(leader->second->priority) + " with priority " +
        std::to_string(options.priority) +
        "; it would wait in front of it for ever, so at least the leader's is needed");
  }
}

bool Scheduler::abort(SeqId seq) {
  const auto found = requests_.find(seq);
  if (found == requests_.end()) return false;
  Request& request = *found->second;
  if (!request.can_run()) {
    request.aborted = true;  // the step or the copies that are under way still write to its blocks
    return true;
  }
  const auto waiting = std::find(waiting_.begin(), waiting_.end(), &request);
  if (waiting != waiting_.end()) {
    waiting_.erase(waiting);
    num_new_waiting_ -= !request.admitted_before;
    hand_turns_down(request);
  } else {
    running_.erase(std::find(running_.begin(), running_.end(), &request));
    leave_place(request);
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

std::shared_ptr<Plan> Scheduler::plan(Lane lane) {
  if (lane == Lane::kPrefill && !config_.has_prefill_lane()) {
    throw std::logic_error("plan() of the prefill lane, but without prefill_costs there is none");
  }
  if (is_under_way(lane)) throw std::logic_error("plan() came before commit() of the previous plan");
  lane_ = lane;
  preempted_.clear();
  part_way_ = nullptr;
  num_planned_ = 0;
  auto plan = std::make_shared<Plan>();
  if (lane == Lane::kDecode) {
    plan_decodes();
    num_decode_ = num_planned_;
    budget_ = prompt_budget(config_, num_decode_);
  } else {
    const auto decodes = [](const Request* request) { return request->wants_decode(); };
    num_decode_ = static_cast<int32_t>(std::count_if(running_.begin(), running_.end(), decodes));
    budget_ = is_starved_ ? 0 : config_.prefill_chunk_size;
    give_places();
  }
  plan_prompts();

  fill(*plan);
  if (lane == Lane::kDecode) {
    plan->was_predicted = predicted_ && has_same_tables(*plan, *predicted_);
    predicted_.reset();
  }
  outstanding(lane).plan = plan;
  return plan;
}

std::shared_ptr<Plan> Scheduler::plan_ahead() {
  const auto& [plan, rows] = outstanding(Lane::kDecode);
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
  give_places();
  do {
    for (size_t i = 0; i < running_.size(); ++i) {
      Request& request = *running_[i];
      if (!request.can_run() || !request.has_place) continue;
      request.decodes = request.wants_decode();
      if (request.decodes && make_room(i)) schedule(request, 1);
    }
  } while (give_places());  // those of the victims
}

// Gives free places to those whose blocks have come, in their order; whether anybody got one.
bool Scheduler::give_places() {
  const int32_t num_before = num_placed_;
  for (Request* request : running_) {
    if (num_placed_ == config_.max_batch_size) break;
    if (request->can_run() && !request->has_place) take_place(*request);
  }
  return num_placed_ > num_before;
}

void Scheduler::take_place(Request& request) {
  request.has_place = true;
  ++num_placed_;
}

void Scheduler::leave_place(Request& request) {
  num_placed_ -= request.has_place;
  request.has_place = false;
}

// Whether there are blocks now for another token of a running request, which may have fallen itself.
bool Scheduler::make_room(size_t index) {
  const Request& request = *running_[index];
  while (blocks_.num_available() < blocks_short(request, 1)) {
    size_t victim = running_.size() - 1;
    while (!running_[victim]->can_run()) --victim;
    if (victim == index && index + 1 < running_.size()) {
      is_starved_ = true;  // it waits for those behind it, which some plan holds, or which fetch
      return false;
    }
    preempt(victim);
    if (victim == index) return false;
  }
  return true;
}

// Prompts that are part-way go on in their order, then others are admitted. The first that cannot be
// completed in this step leaves half of the budget to those behind it, and takes what they leave.
void Scheduler::plan_prompts() {
  Request* part_way = nullptr;
  for (Request* request : running_) {
    const int32_t num_tokens = request->num_uncomputed();
    if (!request->can_run() || !request->has_place || request->wants_decode()) continue;
    if (lane_of(*request, num_tokens) != lane_) continue;
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

// How much of a budget a request may take: of scored prompts together not more than chunk_size in a step,
// since the logits of all their tokens are in memory at once. It may be 0, never less.
int32_t Scheduler::allowance(const Request& request, int32_t budget) const {
  if (!request.scores_prompt) return budget;
  return std::max(0, std::min(budget, config_.chunk_size - num_planned_));
}

void Scheduler::admit() {
  const Request* passed = nullptr;  // the first one
  size_t num_passed = 0;
  while (!is_starved_ && budget_ > 0 && num_passed < std::min(waiting_.size(), kMostPassed)) {
    Request& request = *waiting_[num_passed];
    if (num_placed_ == config_.max_batch_size || allowance(request, budget_) == 0) return;
    // A victim of this plan comes back in a later one, when those that needed its room have had it.
    if (std::find(preempted_.begin(), preempted_.end(), request.seq) != preempted_.end()) return;
    if (waits_for_leader(request) || !joins(request) || waits_to_fetch(request)) {
      if (passed == nullptr && !is_behind(request)) passed = &request;
      ++num_passed;
      continue;
    }
    // What will fetch needs no place now.
    const bool is_place_kept = passed != nullptr && passed->found.empty() && request.found.empty();
    if (num_placed_ + is_place_kept == config_.max_batch_size) return;
    const int32_t num_reserved = passed == nullptr ? 0 : blocks_to_admit(*passed);
    const int32_t num_available = blocks_.num_available() - blocks_.num_unheld(request.match) - num_reserved;
    if (blocks_to_admit(request) - static_cast<int32_t>(request.match.blocks.size()) > num_available) return;
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(num_passed));
    start(request);
  }
}

// Whether a waiting request belongs in this step, were there room for it. While a prompt is part-way, only
// much shorter ones do: they end soon, and delay it little.
bool Scheduler::joins(Request& request) const {
  if (!request.scores_prompt) {
    blocks_.match(request.tokens, request.match);
    match_tiers(request);
  }
  const size_t num_blocks = request.match.blocks.size() + request.found.size();
  const int32_t num_tokens = request.num_tokens() - static_cast<int32_t>(num_blocks) * config_.block_tokens;
  if (lane_of(request, num_tokens) != lane_) return false;
  return part_way_ == nullptr ||
         int64_t{num_tokens} * kJoiningShare <= part_way_->num_uncomputed() - part_way_->num_planned;
}

Lane Scheduler::lane_of(const Request& request, int32_t num_tokens) const {
  return request.scores_prompt ? Lane::kDecode : cheaper_lane(config_, num_tokens, num_decode_);
}

// One block more than its tokens take, so that it does not fall again at once; but never more than it can
// come to need, or a request as large as the cache would wait for ever.
int32_t Scheduler::blocks_to_admit(const Request& request) const {
  return std::min(blocks_for(request.num_tokens()) + 1, blocks_for(request.num_kv_tokens_at_most()));
}

// Moves a request that `joins` has found to belong here, and that waits no longer, to those that run.
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
    --num_new_waiting_;
    rounds_.begin(request.priority, request.turn.round);
  }
  insert_in_order(running_, &request);
  take_blocks(request, request.num_uncomputed());
  begin_fetch(request);
  if (request.is_fetching()) return;
  take_place(request);
  schedule(request, std::min(request.num_uncomputed(), allowance(request, budget_)));
  if (part_way_ == nullptr && request.num_planned < request.num_uncomputed()) part_way_ = &request;
}

// A leader waits for room at most, and nobody keeps room for its followers from it: this cannot last for
// ever.
bool Scheduler::waits_for_leader(const Request& request) const {
  if (!request.leader) return false;
  const auto leader = requests_.find(*request.leader);
  return leader != requests_.end() && !leader->second->aborted && leader->second->num_generated() == 0;
}

// Whether a request waits for a leader that waits as well, or fetches: room that is kept for it would be
// missing there. A leader of another client may have a later turn.
bool Scheduler::is_behind(const Request& request) const {
  return waits_for_leader(request) && !requests_.at(*request.leader)->has_place;
}

// Whether a request whose prefix goes on in tiers waits until fewer others fetch. They hold blocks, which
// those that decode may come to need.
bool Scheduler::waits_to_fetch(const Request& request) const {
  const size_t num_fetching = running_.size() - static_cast<size_t>(num_placed_);
  return !request.found.empty() && num_fetching >= static_cast<size_t>(config_.max_batch_size);
}

int32_t Scheduler::blocks_for(int32_t num_tokens) const {
  return (num_tokens - 1) / config_.block_tokens + 1;  // num_tokens >= 1; no sum that could overflow
}

// Blocks that the request lacks to compute num_tokens more.
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
    note_dropped(blocks_.next_evicted());
    request.blocks.push_back(blocks_.allocate());
  }
}

void Scheduler::preempt(size_t index) {
  Request& victim = *running_[index];
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  insert_in_order(waiting_, &victim);
  leave_place(victim);
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

std::shared_ptr<Committed> Scheduler::commit(const std::vector<int32_t>& sampled, Lane lane) {
  auto& [plan, rows] = outstanding(lane);
  if (!plan) throw std::logic_error("commit() came without a plan()");
  if (sampled.size() != static_cast<size_t>(plan->num_samples)) {
    throw std::invalid_argument("commit() got " + std::to_string(sampled.size()) +
                                " tokens for a plan that samples " + std::to_string(plan->num_samples));
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
      leave_place(*request);
      done.push_back(request);
    }
  }
  const auto is_done = [&](const Request* r) { return std::find(done.begin(), done.end(), r) != done.end(); };
  if (!done.empty())
    running_.erase(std::remove_if(running_.begin(), running_.end(), is_done), running_.end());
  for (const Request* request : done) end(*request);
  plan.reset();
  rows.clear();
  return committed;
}

void Scheduler::publish(Request& request) {
  const int32_t num_full = request.num_computed / config_.block_tokens;
  for (; request.num_published < num_full; ++request.num_published) {
    blocks_.publish(request.blocks, static_cast<size_t>(request.num_published), request.tokens);
  }
  mirror(request);
}

Finish Scheduler::append_sampled(Request& request, int32_t token) const {
  request.tokens.push_back(token);
  if (request.num_generated() >= request.min_tokens && request.stops_at(token)) return Finish::kStop;
  return request.num_generated() == request.max_tokens ? Finish::kLength : Finish::kNone;
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
  stats.waiting = static_cast<int64_t>(waiting_.size() + running_.size()) - num_placed_;
  stats.running = num_placed_;
  stats.capacity_tokens = config_.capacity_tokens();
  stats.used_tokens = int64_t{blocks_.num_held()} * config_.block_tokens;
  stats.cached_tokens = int64_t{blocks_.num_cached()} * config_.block_tokens;
  stats.preemptions = num_preemptions_;
  stats.prefix_query_tokens = prefix_query_tokens_;
  stats.prefix_hit_tokens = prefix_hit_tokens_;
  stats.fetching = std::count_if(running_.begin(), running_.end(), [](auto* r) { return r->is_fetching(); });
  stats.unsent = static_cast<int64_t>(unsent_.size());
  for (size_t t = 0; t < tiers_.size(); ++t) {
    const int64_t num_tokens = config_.block_tokens;
    stats.tiers.push_back({tiers_[t].num_blocks() * num_tokens, tiers_[t].num_stored() * num_tokens,
                           fetched_tokens_[t], dropped_tokens_[t]});
  }
  return stats;
}

std::vector<Description> Scheduler::describe(int64_t max_waiting) const {
  std::vector<Description> all;
  const auto describe = [&](const Request& r, const char* state) {
    all.push_back({r.seq, state, r.num_tokens(), r.num_computed, static_cast<int32_t>(r.blocks.size())});
  };
  for (const Request* r : running_)
    describe(*r, r->aborted          ? "aborted"
                 : r->is_fetching()  ? "fetching"
                 : !r->has_place     ? "fetched"
                 : r->wants_decode() ? "decode"
                                     : "prefill");
  for (const Request* r : waiting_) {
    if (max_waiting-- <= 0) break;
    describe(*r, r->admitted_before ? "preempted" : "waiting");
  }
  return all;
}

void Scheduler::check() const {
  BALLAST_CHECK(requests_.size() == running_.size() + waiting_.size());
  BALLAST_CHECK(num_placed_ <= config_.max_batch_size);
  BALLAST_CHECK(running_.size() - static_cast<size_t>(num_placed_) <=
                static_cast<size_t>(config_.max_batch_size));
  std::vector<int32_t> owners(static_cast<size_t>(config_.num_blocks) + 1, 0);
  std::vector<std::vector<int32_t>> tier_owners;
  for (const Tier& tier : tiers_) tier_owners.emplace_back(static_cast<size_t>(tier.num_blocks()) + 1, 0);
  const Request* last = nullptr;
  int32_t num_placed = 0;
  const auto check_live = [&](const Request& request) {
    const auto found = requests_.find(request.seq);
    BALLAST_CHECK(found != requests_.end() && found->second.get() == &request);
    BALLAST_CHECK(last == nullptr || last->comes_before(request));
    BALLAST_CHECK(request.num_generated() < request.max_tokens);
    last = &request;
  };
  for (const Request* request : running_) {
    check_live(*request);
    const int32_t num_covered = request->num_computed + request->num_planned;
    const int32_t num_planned_ahead = request->num_planned_ahead;
    BALLAST_CHECK(num_covered <= request->num_tokens() && request->num_computed < request->num_tokens());
    // All tokens have blocks, but that of a token to decode may be taken only when it is planned.
    const int32_t num_blocks = static_cast<int32_t>(request->blocks.size());
    const bool decodes = request->wants_decode();
    BALLAST_CHECK(num_blocks <= blocks_for(request->num_tokens() + num_planned_ahead));
    BALLAST_CHECK(num_blocks >=
                  blocks_for((decodes ? num_covered : request->num_tokens()) + num_planned_ahead));
    BALLAST_CHECK(request->num_published == request->num_computed / config_.block_tokens);
    BALLAST_CHECK(request->admitted_before);
    BALLAST_CHECK(!request->can_run() || !request->aborted);
    BALLAST_CHECK(!request->is_fetching() || !request->has_place);
    BALLAST_CHECK(!request->is_planned() || request->has_place);
    num_placed += request->has_place;
    BALLAST_CHECK(request->num_published + static_cast<int32_t>(request->fetches.size()) <=
                  (request->num_tokens() - 1) / config_.block_tokens);
    const auto& [plan, rows] = outstanding_[static_cast<size_t>(request->lane)];
    const bool is_row = plan && std::find(rows.begin(), rows.end(), request) != rows.end();
    BALLAST_CHECK(is_row == request->is_planned());
    blocks_.check_published(request->blocks, static_cast<size_t>(request->num_published), request->tokens);
    for (const BlockId block : request->blocks) ++owners[index_of(block)];
    for (size_t t = 0; t < tiers_.size(); ++t) {
      const std::vector<BlockId>& table = request->tiers[t].blocks;
      tiers_[t].check_table(table, request->tokens);
      for (const BlockId block : table) ++tier_owners[t][index_of(block)];
    }
  }
  BALLAST_CHECK(num_placed == num_placed_);
  last = nullptr;
  int32_t num_new = 0;
  for (const Request* request : waiting_) {
    check_live(*request);
    BALLAST_CHECK(request->blocks.empty() && request->num_computed == 0 && request->num_planned == 0);
    BALLAST_CHECK(!request->aborted && !request->has_place);
    for (const TierTable& tier : request->tiers) BALLAST_CHECK(tier.blocks.empty());
    BALLAST_CHECK(request->admitted_before || request->num_generated() == 0);
    num_new += !request->admitted_before;
    BALLAST_CHECK(!request->admitted_before || request->turn.round <= rounds_.now(request->priority));
  }
  BALLAST_CHECK(num_new == num_new_waiting_ && num_new <= config_.max_queue);
  std::vector<int32_t> num_ahead(tiers_.size(), 0);
  for (const Request* request : running_) {
    for (size_t t = 0; t < tiers_.size(); ++t) num_ahead[t] += request->tiers[t].num_coming;
    for (size_t t = 0; t < tiers_.size(); ++t) {
      const auto is_of = [&](int32_t tier) { return static_cast<size_t>(tier) == t; };
      BALLAST_CHECK(request->tiers[t].num_coming <=
                    std::count_if(request->fetches.begin(), request->fetches.end(), is_of));
    }
  }
  for (size_t t = 0; t < tiers_.size(); ++t) BALLAST_CHECK(num_ahead[t] == speeds_[t].num_ahead);
  BALLAST_CHECK(unsent_.size() <= kMostUnsent);
  for (const Unsent& unsent : unsent_) {
    for (size_t t = 0; t < tiers_.size(); ++t) {
      tiers_[t].check_table(unsent.tiers[t].blocks, unsent.tokens);
      for (const BlockId block : unsent.tiers[t].blocks) ++tier_owners[t][index_of(block)];
    }
  }
  blocks_.check(owners);
  for (size_t t = 0; t < tiers_.size(); ++t) tiers_[t].check(tier_owners[t]);
}

}  // namespace ballast
