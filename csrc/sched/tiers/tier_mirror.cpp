#include "sched/tiers/tier_mirror.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/check.h"

namespace ballast {

TierMirror::TierMirror(const SchedulerConfig& config, BlockManager& blocks)
    : config_(config),
      blocks_(blocks),
      tiers_(make_tiers(config)),
      speeds_(config.tiers.size()),
      fetched_tokens_(config.tiers.size(), 0),
      dropped_tokens_(config.tiers.size(), 0),
      sent_(config.tiers.size(), std::vector<SentBlock>(static_cast<size_t>(config.num_blocks) + 1)),
      states_(tiers_, sent_, blocks) {
  if (!blocks.states().is_used()) return;
  for (size_t t = 0; t < speeds_.size(); ++t) speeds_[t].blocks_per_state = config.tiers[t].blocks_per_state;
}

std::vector<Tier> TierMirror::make_tiers(const SchedulerConfig& config) {
  std::vector<Tier> tiers;
  for (const TierConfig& tier : config.tiers) tiers.emplace_back(tier, config.block_tokens);
  return tiers;
}

std::vector<Transfer> TierMirror::take_transfers() { return std::exchange(transfers_, {}); }

size_t TierMirror::checked(int32_t tier) const {
  if (tier < 0 || static_cast<size_t>(tier) >= tiers_.size()) {
    throw std::invalid_argument("tier " + std::to_string(tier) + " of " + std::to_string(tiers_.size()));
  }
  return static_cast<size_t>(tier);
}

void TierMirror::match(Request& request, const StepPlanner& planner, int32_t num_decode) const {
  request.found.clear();
  size_t end = request.match.num_usable;
  for (size_t t = 0; t < tiers_.size(); ++t) {
    tiers_[t].match(request.tokens, request.salt, request.tiers[t].match);
    const std::vector<BlockId>& blocks = request.tiers[t].match.blocks;
    for (; end < blocks.size() && tiers_[t].is_stored(blocks[end]); ++end) {
      request.found.push_back(static_cast<int32_t>(t));
    }
  }
  end = std::max(end, request.match.blocks.size());
  keep_usable(request);
  request.num_cut = static_cast<int32_t>(end - request.match.num_usable - request.found.size());
  if (request.found.empty()) return;
  const int32_t num_matched = static_cast<int32_t>(request.match.num_usable) * config_.block_tokens;
  request.found.resize(num_worth_fetching(planner, config_.block_tokens, speeds_, request.found,
                                          request.num_tokens() - num_matched, num_decode,
                                          [&](size_t num_found) { return num_usable(request, num_found); }));
  keep_usable(request);
}

void TierMirror::keep_usable(Request& request) const {
  request.found.resize(num_usable(request, request.found.size()));
  if (request.found.empty() || !blocks_.states().is_used()) return;
  request.found.back() = *tier_with_state(request, request.found.size() - 1);
}

// Of the first blocks that were found, those after which the request can begin: layers with a window have
// what it sees, and a tier has the recurrent state after the last block.
size_t TierMirror::num_usable(const Request& request, size_t num_found) const {
  const size_t begin = request.match.num_usable;
  const auto is_there = [&](size_t index) {
    if (index < begin) return blocks_.windows().of(request.match.blocks[index]) != kNullBlock;
    const size_t tier = static_cast<size_t>(request.found[index - begin]);
    return tiers_[tier].has_window(request.tiers[tier].match.blocks[index]);
  };
  size_t num = std::max(begin, blocks_.windows().num_usable(begin + num_found, is_there)) - begin;
  if (!blocks_.states().is_used()) return num;
  while (num > 0 && !tier_with_state(request, num - 1)) --num;
  return num;
}

// The tier that has a block that was found, and the state after it. If there is one, it brings that block.
std::optional<int32_t> TierMirror::tier_with_state(const Request& request, size_t index) const {
  const size_t at = request.match.num_usable + index;
  for (size_t t = static_cast<size_t>(request.found[index]); t < tiers_.size(); ++t) {
    const std::vector<BlockId>& blocks = request.tiers[t].match.blocks;
    const bool is_there = at < blocks.size() && tiers_[t].is_stored(blocks[at]);
    if (is_there && tiers_[t].state_of(blocks[at]) != kNullSlot) return static_cast<int32_t>(t);
  }
  return std::nullopt;
}

void TierMirror::begin_fetch(Request& request) {
  for (size_t t = 0; t < tiers_.size(); ++t) {
    TierTable& table = request.tiers[t];
    std::vector<BlockId> known = std::move(table.match.blocks);
    table = {};
    table.blocks = std::move(known);
    tiers_[t].hold(table.blocks);
  }
  request.fetches = std::exchange(request.found, {});
  request.fetch_number = ++num_fetches_;
  size_t position = static_cast<size_t>(request.num_published);
  for (const int32_t tier : request.fetches) {
    TierTable& table = request.tiers[static_cast<size_t>(tier)];
    Transfer fetch{Move::kFetch, tier, table.blocks[position]};
    fetch.block = request.blocks[position];
    if (request.fetched_end > 0 && static_cast<int32_t>(position) >= request.fetched_begin) {
      fetch.window_block = blocks_.windows().of(fetch.block);
    }
    fetch.seq = request.seq;
    if (position + 1 == static_cast<size_t>(request.num_published) + request.fetches.size() &&
        request.state.fetched != kNullSlot) {
      fetch.state = request.state.fetched;
      fetch.tier_state = table.fetched = tiers_[static_cast<size_t>(tier)].state_of(fetch.tier_block);
      tiers_[static_cast<size_t>(tier)].hold_state(table.fetched);
      request.state.fetched_use = tiers_[static_cast<size_t>(tier)].use_of_state(fetch.tier_block);
    }
    transfers_.push_back(std::move(fetch));
    ++position;
    ++table.num_coming;
    ++speeds_[static_cast<size_t>(tier)].num_ahead;
  }
  mirror(request);
}

void TierMirror::set_block_seconds(int32_t tier, double block_seconds) {
  speeds_[checked(tier)].block_seconds = block_seconds;
}

void TierMirror::set_coming(Request& request, int32_t tier, int32_t num_blocks) {
  TierTable& table = request.tiers[checked(tier)];
  if (num_blocks < 0 || num_blocks > table.num_coming) {
    throw std::invalid_argument("sequence " + std::to_string(static_cast<int64_t>(request.seq)) + ": " +
                                std::to_string(num_blocks) + " blocks to come of " +
                                std::to_string(table.num_coming));
  }
  speeds_[static_cast<size_t>(tier)].num_ahead += num_blocks - table.num_coming;
  table.num_coming = num_blocks;
}

bool TierMirror::is_worth_fetching(const Request& request, const std::vector<Request*>& running,
                                   const StepPlanner& planner, int32_t num_decode) const {
  std::vector<FetchSpeed> speeds = speeds_;
  for (FetchSpeed& speed : speeds) speed.num_ahead = 0;
  for (const Request* other : running) {
    if (!other->is_fetching() || other->fetch_number >= request.fetch_number) continue;
    for (size_t t = 0; t < tiers_.size(); ++t) speeds[t].num_ahead += other->tiers[t].num_coming;
  }
  if (needs_all()) {
    // What has arrived is useless without the rest, so only the rest counts.
    for (const int32_t tier : request.fetches) --speeds[static_cast<size_t>(tier)].num_ahead;
    for (size_t t = 0; t < tiers_.size(); ++t) speeds[t].num_ahead += request.tiers[t].num_coming;
  }
  const size_t num_asked = request.fetches.size();
  const auto usable = [&](size_t num_blocks) {
    return needs_all() && num_blocks < num_asked ? 0 : num_blocks;
  };
  return num_worth_fetching(planner, config_.block_tokens, speeds, request.fetches, request.num_uncomputed(),
                            num_decode, usable) == num_asked;
}

void TierMirror::check_fetched(const Request& request, int32_t num_blocks, Damage damage) {
  const int32_t num_asked = static_cast<int32_t>(request.fetches.size());
  const bool is_damaged = damage != Damage::kNone;
  const std::string fetched = "sequence " + std::to_string(static_cast<int64_t>(request.seq)) + " fetched " +
                              std::to_string(num_blocks);
  if (num_blocks < 0 || num_blocks > num_asked - is_damaged) {
    throw std::invalid_argument(fetched + (is_damaged ? " blocks before a damaged one of " : " of ") +
                                std::to_string(num_asked) + " blocks");
  }
  if (damage == Damage::kState && (request.state.fetched == kNullSlot || num_blocks + 1 < num_asked)) {
    throw std::invalid_argument(
        fetched + " of " + std::to_string(num_asked) +
        " blocks before one with a damaged state; only the last one can have a state");
  }
}

int32_t TierMirror::end_fetch(Request& request, int32_t num_blocks, Damage damage) {
  check_fetched(request, num_blocks, damage);
  const int32_t num_asked = static_cast<int32_t>(request.fetches.size());
  const std::vector<int32_t> from = std::exchange(request.fetches, {});
  for (size_t t = 0; t < tiers_.size(); ++t) {
    speeds_[t].num_ahead -= std::exchange(request.tiers[t].num_coming, 0);
    const StateSlot fetched = std::exchange(request.tiers[t].fetched, kNullSlot);
    if (damage == Damage::kState) tiers_[t].drop_state(fetched);
    tiers_[t].release_state(fetched);
  }
  const auto table_of = [&](int32_t tier) -> std::vector<BlockId>& {
    return request.tiers[static_cast<size_t>(tier)].blocks;
  };
  // Another request may have found in the meantime that the numbers are wrong.
  const bool is_forgotten = std::any_of(from.begin(), from.end(), [&](int32_t tier) {
    return tiers_[static_cast<size_t>(tier)].is_hidden(table_of(tier).front());
  });
  if (damage == Damage::kBlock) {
    const int32_t tier = from[static_cast<size_t>(num_blocks)];
    std::vector<BlockId>& table = table_of(tier);
    const size_t position = static_cast<size_t>(request.num_published + num_blocks);
    tiers_[static_cast<size_t>(tier)].hide(table[position]);
    transfers_.push_back({Move::kDrop, tier, table[position]});
    tiers_[static_cast<size_t>(tier)].release_from(table, position);
  }
  if (request.aborted || is_forgotten) return 0;
  if (needs_all() && num_blocks < num_asked) return 0;
  for (int32_t i = 0; i < num_blocks; ++i) {
    fetched_tokens_[static_cast<size_t>(from[static_cast<size_t>(i)])] += config_.block_tokens;
  }
  return num_blocks;
}

// Damaged blocks of a tier, and the blocks that follow them, are sent again.
void TierMirror::mirror(Request& request) {
  if (request.is_fetching()) return;
  if (request.num_published == 0 || blocks_.is_hidden(request.blocks.front())) return;
  for (size_t t = 0; t < tiers_.size(); ++t) {
    send(t, request.tiers[t], request.tokens, request.salt, request.blocks,
         static_cast<size_t>(request.num_published));
  }
}

// Sends the first num_blocks of the cache's `blocks`, which hold `tokens`, to a tier while it has room.
void TierMirror::send(size_t tier, TierTable& to, const std::vector<int32_t>& tokens, const Salt& salt,
                      const std::vector<BlockId>& blocks, size_t num_blocks) {
  std::vector<BlockId>& table = to.blocks;
  tiers_[tier].release_hidden(table, to.num_hides);
  to.num_noted = std::min(to.num_noted, table.size());
  bool is_sent = false;
  while (table.size() < num_blocks && tiers_[tier].extend(table, tokens, salt, is_sent)) {
    if (!is_sent) continue;
    const size_t position = table.size() - 1;
    const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(position) * config_.block_tokens;
    Transfer store{Move::kStore, static_cast<int32_t>(tier), table.back()};
    store.block = blocks[position];
    store.window_block = blocks_.windows().of(blocks[position]);
    tiers_[tier].note_window(table.back(), store.window_block != kNullBlock);
    store.parent = position == 0 ? kNullBlock : table[position - 1];
    store.tokens = {begin, begin + config_.block_tokens};
    store.salt = salt;
    transfers_.push_back(std::move(store));
  }
  for (; to.num_noted < std::min(table.size(), num_blocks); ++to.num_noted) {
    const BlockId block = blocks[to.num_noted];
    sent_[tier][index_of(block)] = {blocks_.stamp(block), table[to.num_noted],
                                    tiers_[tier].stamp(table[to.num_noted])};
  }
}

void TierMirror::note_evicted(BlockId evicted) {
  if (evicted == kNullBlock) return;
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (sent_[t][index_of(evicted)].stamp != blocks_.stamp(evicted))
      dropped_tokens_[t] += config_.block_tokens;
  }
}

void TierMirror::keep_unsent(const Request& request) {
  const size_t num_blocks = request.blocks.empty() ? 0 : static_cast<size_t>(request.num_published);
  if (num_blocks == 0 || blocks_.is_hidden(request.blocks.front())) return;
  const auto misses = [&](const TierTable& tier) { return tier.blocks.size() < num_blocks; };
  if (std::none_of(request.tiers.begin(), request.tiers.end(), misses)) return;
  bool waits = false;
  for (size_t t = 0; t < tiers_.size(); ++t) waits |= misses(request.tiers[t]) && tiers_[t].is_busy();
  const auto end = static_cast<std::ptrdiff_t>(num_blocks);
  Unsent unsent;
  unsent.salt = request.salt;
  unsent.tokens.assign(request.tokens.begin(), request.tokens.begin() + end * config_.block_tokens);
  unsent.match.blocks.assign(request.blocks.begin(), request.blocks.begin() + end);
  for (const BlockId block : unsent.match.blocks) unsent.match.stamps.push_back(blocks_.stamp(block));
  for (size_t t = 0; t < tiers_.size(); ++t) {
    std::vector<BlockId> table = request.tiers[t].blocks;
    table.resize(std::min(table.size(), num_blocks));
    tiers_[t].hold(table);
    unsent.tiers.push_back({{}, std::move(table), request.tiers[t].num_hides});
  }
  if (!waits) {
    drop(unsent);
    return;
  }
  unsent_.push_back(std::move(unsent));
  if (unsent_.size() <= kMostUnsent) return;
  drop(unsent_.front());
  unsent_.pop_front();
}

void TierMirror::send_unsent() {
  for (auto unsent = unsent_.begin(); unsent != unsent_.end();) {
    blocks_.keep_known(unsent->match);
    const std::vector<BlockId>& blocks = unsent->match.blocks;
    bool waits = false;
    for (size_t t = 0; t < tiers_.size(); ++t) {
      send(t, unsent->tiers[t], unsent->tokens, unsent->salt, blocks, blocks.size());
      waits |= unsent->tiers[t].blocks.size() < blocks.size() && tiers_[t].is_busy();
    }
    if (waits) {
      ++unsent;
    } else {
      drop(*unsent);
      unsent = unsent_.erase(unsent);
    }
  }
}

// Blocks that are not sent yet are sent only if another request uses them while the cache has them.
void TierMirror::drop(Unsent& unsent) {
  for (size_t t = 0; t < tiers_.size(); ++t) tiers_[t].release(unsent.tiers[t].blocks);
}

void TierMirror::stored(int32_t tier, bool is_whole, const std::vector<Request*>& running) {
  Tier& at = tiers_[checked(tier)];
  if (at.num_storing() == 0) {
    throw std::logic_error("stored() came for tier " + std::to_string(tier) + ", which has no pending store");
  }
  at.arrive(is_whole);
  send_unsent();
  for (Request* request : running) mirror(*request);
  send_states();
}

void TierMirror::stored_state(int32_t tier, bool is_whole) {
  Tier& at = tiers_[checked(tier)];
  if (!at.is_storing_states()) {
    throw std::logic_error("stored_state() came for tier " + std::to_string(tier) +
                           ", which has no pending store of a state");
  }
  at.state_arrives(is_whole);
  send_states();
}

void TierMirror::restore(int32_t tier, const std::vector<BlockId>& blocks,
                         const std::vector<BlockId>& parents, const std::vector<int32_t>& tokens,
                         const std::vector<Salt>& salts, const std::vector<bool>& have_windows,
                         const std::vector<StateSlot>& states) {
  tiers_[checked(tier)].restore(blocks, parents, tokens, salts, have_windows, states);
}

void TierMirror::release(Request& request) {
  keep_unsent(request);
  for (size_t t = 0; t < tiers_.size(); ++t) tiers_[t].release(request.tiers[t].blocks);
}

void TierMirror::forget(Request& request, bool is_published) {
  for (size_t t = 0; t < tiers_.size(); ++t) {
    const BlockId first = is_published ? tiers_[t].first(request.tokens, request.salt) : kNullBlock;
    if (first != kNullBlock) {
      tiers_[t].hide(first);
      transfers_.push_back({Move::kDrop, static_cast<int32_t>(t), first});
    }
    tiers_[t].release(request.tiers[t].blocks);
  }
}

std::vector<TierStats> TierMirror::stats() const {
  std::vector<TierStats> stats;
  const int64_t num_tokens = config_.block_tokens;
  for (size_t t = 0; t < tiers_.size(); ++t) {
    stats.push_back({tiers_[t].num_blocks() * num_tokens, tiers_[t].num_stored() * num_tokens,
                     fetched_tokens_[t], dropped_tokens_[t], tiers_[t].num_states()});
  }
  return stats;
}

void TierMirror::check(const std::vector<Request*>& running) const {
  BALLAST_CHECK(unsent_.size() <= kMostUnsent);
  for (size_t t = 0; t < tiers_.size(); ++t) {
    std::vector<int32_t> owners(static_cast<size_t>(tiers_[t].num_blocks()) + 1, 0);
    const auto own = [&](const TierTable& table, const std::vector<int32_t>& tokens, const Salt& salt) {
      tiers_[t].check_table(table.blocks, tokens, salt);
      for (const BlockId block : table.blocks) ++owners[index_of(block)];
    };
    int32_t num_ahead = 0;
    std::vector<int32_t> holders(static_cast<size_t>(config_.tiers[t].num_states) + 1);
    for (const Request* request : running) {
      const StateSlot fetched = request->tiers[t].fetched;
      if (fetched != kNullSlot) ++holders[index_of(fetched)];
      const auto is_of = [&](int32_t tier) { return static_cast<size_t>(tier) == t; };
      BALLAST_CHECK(request->tiers[t].num_coming <=
                    std::count_if(request->fetches.begin(), request->fetches.end(), is_of));
      num_ahead += request->tiers[t].num_coming;
      own(request->tiers[t], request->tokens, request->salt);
    }
    BALLAST_CHECK(num_ahead == speeds_[t].num_ahead);
    for (const Unsent& unsent : unsent_) own(unsent.tiers[t], unsent.tokens, unsent.salt);
    tiers_[t].check(owners, std::move(holders));
  }
}

}  // namespace ballast
