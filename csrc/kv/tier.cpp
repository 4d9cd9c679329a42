#include "kv/tier.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "base/check.h"

namespace ballast {

Tier::Tier(const TierConfig& config, int32_t block_tokens)
    : config_(config),
      block_tokens_(static_cast<size_t>(block_tokens)),
      blocks_(config.num_blocks, block_tokens, true, {}, {config.num_states}),
      is_stored_(static_cast<size_t>(config.num_blocks) + 1, false),
      has_window_(is_stored_.size(), false) {}

bool Tier::extend(std::vector<BlockId>& table, const std::vector<int32_t>& tokens, const Salt& salt,
                  bool& is_sent) {
  const BlockId parent = table.empty() ? kNullBlock : table.back();
  const int32_t* content = &tokens[table.size() * block_tokens_];
  BlockId block = blocks_.find(parent, content, salt);
  is_sent = block == kNullBlock;
  if (!is_sent) {
    table.push_back(block);
    blocks_.hold(block);
    return true;
  }
  if (!can_send()) return false;
  block = blocks_.allocate();
  set_stored(block, false);
  table.push_back(block);
  blocks_.publish(table, table.size() - 1, tokens, salt);
  storing_.push_back({block, blocks_.stamp(block)});
  return true;
}

void Tier::arrive(bool is_whole) {
  BALLAST_CHECK(!storing_.empty());
  const Sent sent = storing_.front();
  storing_.pop_front();
  takes_more_ = takes_more_ && is_whole;
  if (blocks_.stamp(sent.block) != sent.stamp) return;
  if (is_whole)
    set_stored(sent.block, !is_hidden(sent.block));
  else
    hide(sent.block);
}

bool Tier::has_or_gets_state(BlockId block) const {
  return state_of(block) != kNullSlot ||
         std::any_of(storing_states_.begin(), storing_states_.end(), [&](const SentState& sent) {
           return sent.of.block == block && sent.of.stamp == blocks_.stamp(block);
         });
}

StateSlot Tier::send_state(BlockId block, const SnapshotUse& use) {
  const bool has_room = blocks_.states().num_held() < config_.num_states;
  if (!takes_more_ || is_busy_with_states() || !has_room) return kNullSlot;
  const StateSlot state = blocks_.states().take();
  storing_states_.push_back({state, {block, blocks_.stamp(block)}, use});
  return state;
}

void Tier::state_arrives(bool is_whole) {
  BALLAST_CHECK(!storing_states_.empty());
  const SentState sent = storing_states_.front();
  storing_states_.pop_front();
  takes_more_ = takes_more_ && is_whole;
  const bool is_known = blocks_.is_known(sent.of.block) && blocks_.stamp(sent.of.block) == sent.of.stamp;
  if (is_whole && is_known) blocks_.states().attach(sent.of.block, sent.state, sent.use);
  blocks_.states().release(sent.state);
}

void Tier::use_state(BlockId block, const SnapshotUse& use) {
  blocks_.states().use(block, use);
  for (SentState& sent : storing_states_) {
    if (sent.of.block == block && sent.of.stamp == blocks_.stamp(block)) sent.use = after_use(sent.use, use);
  }
}

void Tier::change_uses(int64_t request, const std::function<void(SnapshotUse&)>& change) {
  blocks_.states().change_uses(request, change);
  for (SentState& sent : storing_states_) {
    if (sent.use.request == request) change(sent.use);
  }
}

BlockId Tier::first(const std::vector<int32_t>& tokens, const Salt& salt) const {
  return tokens.size() < block_tokens_ ? kNullBlock : blocks_.find(kNullBlock, tokens.data(), salt);
}

void Tier::hide(BlockId block) {
  for (const BlockId hidden : blocks_.hide(block)) set_stored(hidden, false);
}

void Tier::set_stored(BlockId block, bool is_stored) {
  num_stored_ += is_stored - is_stored_[index_of(block)];
  is_stored_[index_of(block)] = is_stored;
}

void Tier::release_hidden(std::vector<BlockId>& table, uint64_t& num_hides) {
  if (num_hides != blocks_.num_hides()) release_from(table, blocks_.num_before_hidden(table));
  num_hides = blocks_.num_hides();
}

void Tier::release_from(std::vector<BlockId>& table, size_t begin) {
  std::vector<BlockId> end(table.begin() + static_cast<std::ptrdiff_t>(begin), table.end());
  table.resize(begin);
  blocks_.release(end);
}

void Tier::restore(const std::vector<BlockId>& blocks, const std::vector<BlockId>& parents,
                   const std::vector<int32_t>& tokens, const std::vector<Salt>& salts,
                   const std::vector<bool>& have_windows, const std::vector<StateSlot>& states) {
  if (num_known() != 0) throw std::invalid_argument("a tier that knows blocks already is restored");
  if (parents.size() != blocks.size() || tokens.size() != blocks.size() * block_tokens_ ||
      salts.size() != blocks.size() || (!have_windows.empty() && have_windows.size() != blocks.size()) ||
      (!states.empty() && states.size() != blocks.size())) {
    throw std::invalid_argument(
        "restored blocks, their parents, their tokens, their salts, their windows and their states differ in "
        "number");
  }
  check_restored_states(blocks, states);
  std::vector<bool> is_known(is_stored_.size(), false);
  is_known[index_of(kNullBlock)] = true;
  std::vector<Salt> salt_of(is_known.size());
  for (size_t i = blocks.size(); i-- > 0;) {
    const auto is_id = [&](BlockId id) { return id >= kNullBlock && index_of(id) < is_known.size(); };
    const std::string name = "restored block " + std::to_string(static_cast<int32_t>(blocks[i]));
    if (!is_id(blocks[i]) || is_known[index_of(blocks[i])]) {
      throw std::invalid_argument(name + ": ids are unique and run from 1 to " +
                                  std::to_string(config_.num_blocks));
    }
    if (!is_id(parents[i]) || !is_known[index_of(parents[i])]) {
      throw std::invalid_argument(name + ": its parent " + std::to_string(static_cast<int32_t>(parents[i])) +
                                  " does not come after it");
    }
    if (parents[i] != kNullBlock && !(salt_of[index_of(parents[i])] == salts[i])) {
      throw std::invalid_argument(name + ": its parent has another salt");
    }
    is_known[index_of(blocks[i])] = true;
    salt_of[index_of(blocks[i])] = salts[i];
    note_window(blocks[i], !have_windows.empty() && have_windows[i]);
  }
  for (const BlockId block : blocks_.restore(blocks, parents, tokens, salts)) set_stored(block, true);
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i] != kNullSlot && is_stored(blocks[i])) blocks_.states().restore(blocks[i], states[i]);
  }
}

void Tier::check_restored_states(const std::vector<BlockId>& blocks,
                                 const std::vector<StateSlot>& states) const {
  std::vector<bool> is_known(static_cast<size_t>(config_.num_states) + 1, false);
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i] == kNullSlot) continue;
    const int32_t id = static_cast<int32_t>(states[i]);
    if (id < 0 || id > config_.num_states || is_known[index_of(states[i])]) {
      throw std::invalid_argument("restored block " + std::to_string(static_cast<int32_t>(blocks[i])) +
                                  ": its state " + std::to_string(id) +
                                  "; ids are unique and run from 1 to " + std::to_string(config_.num_states));
    }
    is_known[index_of(states[i])] = true;
  }
}

void Tier::check(const std::vector<int32_t>& owners, std::vector<int32_t> holders) const {
  blocks_.check(owners);
  holders.resize(static_cast<size_t>(config_.num_states) + 1);
  for (const SentState& sent : storing_states_) ++holders[index_of(sent.state)];
  blocks_.states().check(holders);
}

}  // namespace ballast
