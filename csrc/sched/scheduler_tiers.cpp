// The scheduler's part that knows the tiers: what is sent to them, and what comes back.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/check.h"
#include "sched/scheduler.h"

namespace ballast {

std::vector<Transfer> Scheduler::take_transfers() { return std::exchange(transfers_, {}); }

size_t Scheduler::checked_tier(int32_t tier) const {
  if (tier < 0 || static_cast<size_t>(tier) >= tiers_.size()) {
    throw std::invalid_argument("tier " + std::to_string(tier) + " of " + std::to_string(tiers_.size()));
  }
  return static_cast<size_t>(tier);
}

// The prefix that goes on in tiers where the cache's match ends, as far as it is not sooner computed; of two
// tiers that have a block, the faster.
void Scheduler::match_tiers(Request& request) const {
  request.found.clear();
  size_t end = request.match.blocks.size();
  for (size_t t = 0; t < tiers_.size(); ++t) {
    tiers_[t].match(request.tokens, request.tiers[t].match);
    const std::vector<BlockId>& blocks = request.tiers[t].match.blocks;
    for (; end < blocks.size() && tiers_[t].is_stored(blocks[end]); ++end) {
      request.found.push_back(static_cast<int32_t>(t));
    }
  }
  const int32_t num_matched = static_cast<int32_t>(request.match.blocks.size()) * config_.block_tokens;
  request.found.resize(
      num_worth_fetching(config_, speeds_, request.found, request.num_tokens() - num_matched, num_decode_));
}

// Holds what tiers know of a request that starts, and orders what they are to bring of it.
void Scheduler::begin_fetch(Request& request) {
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
    fetch.seq = request.seq;
    transfers_.push_back(std::move(fetch));
    ++position;
    ++table.num_coming;
    ++speeds_[static_cast<size_t>(tier)].num_ahead;
  }
  mirror(request);
}

Request& Scheduler::fetching(SeqId seq) const {
  const auto found = requests_.find(seq);
  if (found == requests_.end() || !found->second->is_fetching()) {
    throw std::invalid_argument("sequence " + std::to_string(static_cast<int64_t>(seq)) + " fetches nothing");
  }
  return *found->second;
}

void Scheduler::measured(int32_t tier, double block_seconds) {
  speeds_[checked_tier(tier)].block_seconds = block_seconds;
}

void Scheduler::coming(SeqId seq, int32_t tier, int32_t num_blocks) {
  TierTable& table = fetching(seq).tiers[checked_tier(tier)];
  if (num_blocks < 0 || num_blocks > table.num_coming) {
    throw std::invalid_argument("sequence " + std::to_string(static_cast<int64_t>(seq)) + ": " +
                                std::to_string(num_blocks) + " blocks to come of " +
                                std::to_string(table.num_coming));
  }
  speeds_[static_cast<size_t>(tier)].num_ahead += num_blocks - table.num_coming;
  table.num_coming = num_blocks;
}

bool Scheduler::is_worth_fetching(SeqId seq) const {
  const Request& request = fetching(seq);
  std::vector<FetchSpeed> speeds = speeds_;
  for (FetchSpeed& speed : speeds) speed.num_ahead = 0;
  for (const Request* other : running_) {
    if (!other->is_fetching() || other->fetch_number >= request.fetch_number) continue;
    for (size_t t = 0; t < tiers_.size(); ++t) speeds[t].num_ahead += other->tiers[t].num_coming;
  }
  return num_worth_fetching(config_, speeds, request.fetches, request.num_uncomputed(), num_decode_) ==
         request.fetches.size();
}

void Scheduler::fetched(SeqId seq, int32_t num_blocks, bool is_damaged) {
  Request& request = fetching(seq);
  const int32_t num_asked = static_cast<int32_t>(request.fetches.size());
  if (num_blocks < 0 || num_blocks > num_asked - is_damaged) {
    throw std::invalid_argument(
        "sequence " + std::to_string(static_cast<int64_t>(seq)) + " fetched " + std::to_string(num_blocks) +
        (is_damaged ? " blocks before a damaged one of " : " of ") + std::to_string(num_asked) + " blocks");
  }
  const std::vector<int32_t> from = std::exchange(request.fetches, {});
  for (size_t t = 0; t < tiers_.size(); ++t) {
    speeds_[t].num_ahead -= std::exchange(request.tiers[t].num_coming, 0);
  }
  const auto table_of = [&](int32_t tier) -> std::vector<BlockId>& {
    return request.tiers[static_cast<size_t>(tier)].blocks;
  };
  // Meanwhile another request may have found that the numbers are wrong.
  const bool is_forgotten = std::any_of(from.begin(), from.end(), [&](int32_t tier) {
    return tiers_[static_cast<size_t>(tier)].is_hidden(table_of(tier).front());
  });
  if (is_damaged) {
    const int32_t tier = from[static_cast<size_t>(num_blocks)];
    std::vector<BlockId>& table = table_of(tier);
    const size_t position = static_cast<size_t>(request.num_published + num_blocks);
    tiers_[static_cast<size_t>(tier)].hide(table[position]);
    transfers_.push_back({Move::kDrop, tier, table[position]});
    tiers_[static_cast<size_t>(tier)].release_from(table, position);
  }
  if (request.aborted) {
    running_.erase(std::find(running_.begin(), running_.end(), &request));
    release(request);
    end(request);
    return;
  }
  if (is_forgotten) num_blocks = 0;
  for (int32_t i = 0; i < num_blocks; ++i) {
    fetched_tokens_[static_cast<size_t>(from[static_cast<size_t>(i)])] += config_.block_tokens;
  }
  const int32_t num_tokens = num_blocks * config_.block_tokens;
  request.num_computed += num_tokens;
  if (request.fetches_first) {
    request.num_cached_tokens += num_tokens;
    prefix_hit_tokens_ += num_tokens;
  }
  publish(request);
}

// Sends on what is published of a request, as far as tiers have room. What somebody has found damaged there
// is sent again, with what follows it.
void Scheduler::mirror(Request& request) {
  if (request.is_fetching()) return;
  if (request.num_published == 0 || blocks_.is_hidden(request.blocks.front())) return;
  for (size_t t = 0; t < tiers_.size(); ++t) {
    send(t, request.tiers[t], request.tokens, request.blocks, static_cast<size_t>(request.num_published));
  }
}

// Sends what the first num_blocks of the cache's `blocks` hold of `tokens` to a tier, as far as it has room.
void Scheduler::send(size_t tier, TierTable& to, const std::vector<int32_t>& tokens,
                     const std::vector<BlockId>& blocks, size_t num_blocks) {
  std::vector<BlockId>& table = to.blocks;
  tiers_[tier].release_hidden(table, to.num_hides);
  bool is_sent = false;
  while (table.size() < num_blocks && tiers_[tier].extend(table, tokens, is_sent)) {
    if (!is_sent) continue;
    const size_t position = table.size() - 1;
    const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(position) * config_.block_tokens;
    Transfer store{Move::kStore, static_cast<int32_t>(tier), table.back()};
    store.block = blocks[position];
    store.parent = position == 0 ? kNullBlock : table[position - 1];
    store.tokens = {begin, begin + config_.block_tokens};
    transfers_.push_back(std::move(store));
  }
  for (; to.num_noted < std::min(table.size(), num_blocks); ++to.num_noted) {
    const BlockId block = blocks[to.num_noted];
    sent_[tier][index_of(block)] = blocks_.stamp(block);
  }
}

// Before the cache gives up a block: whether tiers have been sent what it holds.
void Scheduler::note_dropped(BlockId evicted) {
  if (evicted == kNullBlock) return;
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (sent_[t][index_of(evicted)] != blocks_.stamp(evicted)) dropped_tokens_[t] += config_.block_tokens;
  }
}

// Before a request gives up its blocks: notes what is still to be sent of them.
void Scheduler::keep_unsent(const Request& request) {
  const size_t num_blocks = request.blocks.empty() ? 0 : static_cast<size_t>(request.num_published);
  if (num_blocks == 0 || blocks_.is_hidden(request.blocks.front())) return;
  const auto misses = [&](const TierTable& tier) { return tier.blocks.size() < num_blocks; };
  if (std::none_of(request.tiers.begin(), request.tiers.end(), misses)) return;
  bool waits = false;
  for (size_t t = 0; t < tiers_.size(); ++t) waits |= misses(request.tiers[t]) && tiers_[t].is_busy();
  const auto end = static_cast<std::ptrdiff_t>(num_blocks);
  Unsent unsent;
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
    give_up(unsent);
    return;
  }
  unsent_.push_back(std::move(unsent));
  if (unsent_.size() <= kMostUnsent) return;
  give_up(unsent_.front());
  unsent_.pop_front();
}

void Scheduler::send_unsent() {
  for (auto unsent = unsent_.begin(); unsent != unsent_.end();) {
    blocks_.keep_known(unsent->match);
    const std::vector<BlockId>& blocks = unsent->match.blocks;
    bool waits = false;
    for (size_t t = 0; t < tiers_.size(); ++t) {
      send(t, unsent->tiers[t], unsent->tokens, blocks, blocks.size());
      waits |= unsent->tiers[t].blocks.size() < blocks.size() && tiers_[t].is_busy();
    }
    if (waits) {
      ++unsent;
    } else {
      give_up(*unsent);
      unsent = unsent_.erase(unsent);
    }
  }
}

// What has not been sent by now is sent no more, unless somebody asks for the same while the cache has it.
void Scheduler::give_up(Unsent& unsent) {
  for (size_t t = 0; t < tiers_.size(); ++t) tiers_[t].release(unsent.tiers[t].blocks);
}

void Scheduler::stored(int32_t tier, bool is_whole) {
  Tier& at = tiers_[checked_tier(tier)];
  if (at.num_storing() == 0) {
    throw std::logic_error("stored() came for tier " + std::to_string(tier) +
                           ", to which nothing is on its way");
  }
  at.arrive(is_whole);
  send_unsent();
  for (Request* request : running_) mirror(*request);
}

void Scheduler::restore(int32_t tier, const std::vector<BlockId>& blocks, const std::vector<BlockId>& parents,
                        const std::vector<int32_t>& tokens) {
  tiers_[checked_tier(tier)].restore(blocks, parents, tokens);
}

// What a request has read or written serves nobody any more, wherever it is kept.
void Scheduler::forget(Request& request) {
  const bool is_published = request.num_published > 0 && !blocks_.is_hidden(request.blocks.front());
  blocks_.discard(request.blocks);
  for (size_t t = 0; t < tiers_.size(); ++t) {
    const BlockId first = is_published ? tiers_[t].first(request.tokens) : kNullBlock;
    if (first != kNullBlock) {
      tiers_[t].hide(first);
      transfers_.push_back({Move::kDrop, static_cast<int32_t>(t), first});
    }
    tiers_[t].release(request.tiers[t].blocks);
  }
}

void Scheduler::release(Request& request) {
  keep_unsent(request);
  blocks_.release(request.blocks);
  for (size_t t = 0; t < tiers_.size(); ++t) tiers_[t].release(request.tiers[t].blocks);
}

}  // namespace ballast
