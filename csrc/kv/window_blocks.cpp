#include "kv/window_blocks.h"

#include <algorithm>

#include "base/check.h"

namespace ballast {

namespace {

int64_t divided_up(int64_t count, int64_t by) { return (count + by - 1) / by; }

// In blocks.
int64_t border_distance(int32_t window, int32_t block_tokens) {
  return divided_up(int64_t{kBorderWindows} * window, block_tokens);
}

// Blocks that the keys of a window take before the block of the token that sees them.
int64_t num_blocks_before(int32_t window, int32_t block_tokens) {
  return divided_up(window - 1, block_tokens);
}

}  // namespace

// Of each request the blocks before the one of its next token, this one, and a further one that a step
// begins; of a request that fetches, the blocks before the tokens that it has and before those that it
// fetches; of a step, those that its tokens fill.
int32_t least_window_blocks(const WindowNeeds& needs) {
  const int64_t num_before = num_blocks_before(needs.window, needs.block_tokens);
  const int64_t of_request = num_before + 2 + (needs.has_tiers ? 2 * num_before : 0);
  const int64_t least = needs.max_batch_size * of_request + divided_up(needs.step_tokens, needs.block_tokens);
  return static_cast<int32_t>(std::min<int64_t>(needs.num_blocks, least));
}

int32_t ample_window_blocks(const WindowNeeds& needs) {
  const int64_t least = least_window_blocks(needs);
  const int64_t num_borders = divided_up(needs.num_blocks, border_distance(needs.window, needs.block_tokens));
  const int64_t num_before = num_blocks_before(needs.window, needs.block_tokens);
  return static_cast<int32_t>(std::min<int64_t>(needs.num_blocks, least + num_borders * num_before));
}

WindowBlocks::WindowBlocks(int32_t num_cache_blocks, int32_t block_tokens, const WindowConfig& config)
    : block_tokens_(block_tokens), config_(config) {
  if (!is_used()) return;
  nodes_.resize(static_cast<size_t>(num_cache_blocks) + 1);
  free_.reserve(static_cast<size_t>(config.num_blocks));
  for (int32_t id = config.num_blocks; id >= 1; --id) free_.push_back(BlockId{id});
}

int32_t WindowBlocks::first_seen(int32_t position) const {
  return is_used() ? std::max(0, position - config_.tokens + 1) / block_tokens_ : 0;
}

bool WindowBlocks::is_before_regular_border(int32_t index) const {
  const int64_t distance = border_distance(config_.tokens, block_tokens_);
  const int64_t next = (index / distance + 1) * distance;
  return next < static_cast<int64_t>(nodes_.size()) && is_before_border(index, static_cast<int32_t>(next));
}

BlockId WindowBlocks::allocate() {
  if (free_.empty()) {
    BALLAST_CHECK(!line_.empty());
    Node& given_up = node(line_.begin()->second);
    line_.erase(line_.begin());
    free_.push_back(given_up.window);
    given_up = {};
  }
  const BlockId window = free_.back();
  free_.pop_back();
  return window;
}

void WindowBlocks::need(BlockId block) {
  if (!is_used()) return;
  Node& needed = node(block);
  if (needed.num_needs++ > 0) return;
  if (needed.window == kNullBlock)
    needed.window = allocate();
  else
    line_.erase(place(needed));
}

void WindowBlocks::release(BlockId block, bool is_border) {
  if (!is_used()) return;
  Node& released = node(block);
  BALLAST_CHECK(released.num_needs > 0);
  released.is_border |= is_border;
  if (--released.num_needs > 0) return;
  released.number = ++num_released_;
  line_.emplace(place(released), block);
}

void WindowBlocks::move(BlockId from, BlockId to) {
  if (!is_used()) return;
  Node& source = node(from);
  if (source.num_needs == 0) return;  // what a request fetches and does not see
  BALLAST_CHECK(source.num_needs == 1);
  if (node(to).window == kNullBlock) {
    node(to) = source;
  } else {
    need(to);
    free_.push_back(source.window);
  }
  source = {};
}

void WindowBlocks::drop(BlockId block) {
  if (of(block) == kNullBlock) return;
  Node& dropped = node(block);
  BALLAST_CHECK(dropped.num_needs == 0);
  line_.erase(place(dropped));
  free_.push_back(dropped.window);
  dropped = {};
}

void WindowBlocks::check(const std::vector<int32_t>& needs) const {
  std::vector<bool> is_listed(static_cast<size_t>(config_.num_blocks) + 1, false);
  const auto list = [&](BlockId window) {
    BALLAST_CHECK(window != kNullBlock && !is_listed[index_of(window)]);
    is_listed[index_of(window)] = true;
  };
  for (const BlockId window : free_) list(window);
  size_t num_waiting = 0, num_kept = 0;
  for (size_t id = 0; id < nodes_.size(); ++id) {
    const Node& each = nodes_[id];
    BALLAST_CHECK(each.num_needs == needs[id]);
    if (each.window == kNullBlock) {
      BALLAST_CHECK(each.num_needs == 0);
      continue;
    }
    list(each.window);
    ++num_kept;
    if (each.num_needs > 0) continue;
    const auto found = line_.find(place(each));
    BALLAST_CHECK(found != line_.end() && index_of(found->second) == id);
    ++num_waiting;
  }
  BALLAST_CHECK(num_waiting == line_.size());
  BALLAST_CHECK(num_kept + free_.size() == static_cast<size_t>(config_.num_blocks));
}

}  // namespace ballast
