#include "sched/request_blocks.h"

#include <algorithm>
#include <utility>

namespace ballast {

int32_t RequestBlocks::num_missing(const Request& request, int32_t num_tokens) const {
  return std::max(0,
                  num_for(request.num_computed + num_tokens) - static_cast<int32_t>(request.blocks.size()));
}

int32_t RequestBlocks::num_to_admit(const Request& request) const {
  return std::min(num_for(request.num_tokens()) + 1, num_for(request.num_kv_tokens_at_most()));
}

void RequestBlocks::begin(Request& request) {
  request.num_known = static_cast<int32_t>(request.match.blocks.size());
  request.continuation.branches = blocks_.branches_after(request.match, request.tokens.size());
  request.match.resize(request.match.num_usable);
  request.blocks = std::move(request.match.blocks);
  request.match = {};
  blocks_.hold(request.blocks);
  request.num_published = static_cast<int32_t>(request.blocks.size());
  request.num_computed = request.num_published * block_tokens_;
  request.windows_begin = request.windows_end = blocks_.windows().first_seen(request.num_computed);
  acquire_windows(request, 0);
}

void RequestBlocks::acquire_windows(Request& request, int32_t num_tokens) {
  if (!blocks_.windows().is_used()) return;
  const int32_t num_covered = request.num_computed + num_tokens;
  const int32_t end = num_covered == 0 ? 0 : num_for(num_covered);
  for (; request.windows_end < end; ++request.windows_end) {
    blocks_.windows().need(request.blocks[static_cast<size_t>(request.windows_end)]);
  }
}

void RequestBlocks::acquire_fetched_windows(Request& request, int32_t num_blocks) {
  if (!blocks_.windows().is_used()) return;
  request.fetched_end = num_blocks;
  request.fetched_begin =
      std::max(blocks_.windows().first_seen(num_blocks * block_tokens_), request.windows_end);
  for (int32_t i = request.fetched_begin; i < request.fetched_end; ++i) {
    blocks_.windows().need(request.blocks[static_cast<size_t>(i)]);
  }
}

void RequestBlocks::end_fetch(Request& request, bool is_complete) {
  const auto release = [&](int32_t begin, int32_t end, bool is_border) {
    for (int32_t i = begin; i < end; ++i) {
      blocks_.windows().release(request.blocks[static_cast<size_t>(i)], is_border);
    }
  };
  if (is_complete) {
    const int32_t first = blocks_.windows().first_seen(request.fetched_end * block_tokens_);
    release(request.windows_begin, std::min(first, request.windows_end), /*is_border=*/true);
    if (request.fetched_end > 0) {
      request.windows_begin = first;
      request.windows_end = request.fetched_end;
    }
  } else {
    release(request.fetched_begin, request.fetched_end, /*is_border=*/false);
  }
  request.fetched_begin = request.fetched_end = 0;
}

// Where later requests are likely to begin: at the end of the prompt, where another prompt has branched off,
// and at regular distances.
bool RequestBlocks::is_before_border(const Request& request, int32_t index) const {
  const WindowBlocks& windows = blocks_.windows();
  return windows.is_before_border(index, request.prompt_tokens / block_tokens_) ||
         windows.is_before_border(index, (request.prompt_tokens - 1) / block_tokens_) ||
         windows.is_before_border(index, request.num_known) || windows.is_before_regular_border(index);
}

void RequestBlocks::acquire(Request& request, int32_t num_tokens) {
  for (int32_t missing = num_missing(request, num_tokens); missing > 0; --missing) {
    tiers_.note_evicted(blocks_.next_evicted());
    request.blocks.push_back(blocks_.allocate());
  }
}

void RequestBlocks::publish(Request& request) {
  const int32_t num_full = request.num_computed / block_tokens_;
  for (; request.num_published < num_full; ++request.num_published) {
    blocks_.publish(request.blocks, static_cast<size_t>(request.num_published), request.tokens, request.salt);
  }
  tiers_.mirror(request);
  if (!blocks_.windows().is_used()) return;
  const int32_t first = blocks_.windows().first_seen(num_full * block_tokens_);
  for (; request.windows_begin < first; ++request.windows_begin) {
    blocks_.windows().release(request.blocks[static_cast<size_t>(request.windows_begin)],
                              is_before_border(request, request.windows_begin));
  }
}

void RequestBlocks::release_after(Request& request, int32_t num_tokens) {
  const size_t num_kept = static_cast<size_t>(num_for(num_tokens));
  for (; static_cast<size_t>(request.windows_end) > num_kept; --request.windows_end) {
    blocks_.windows().release(request.blocks[static_cast<size_t>(request.windows_end) - 1], false);
  }
  for (; request.blocks.size() > num_kept; request.blocks.pop_back()) blocks_.release(request.blocks.back());
}

// The end of its computed tokens is a border.
void RequestBlocks::release_windows(Request& request) {
  for (; request.windows_begin < request.windows_end; ++request.windows_begin) {
    blocks_.windows().release(request.blocks[static_cast<size_t>(request.windows_begin)], true);
  }
  request.windows_begin = request.windows_end = 0;
}

void RequestBlocks::release(Request& request) {
  release_windows(request);
  tiers_.release(request);
  blocks_.release(request.blocks);
}

void RequestBlocks::forget(Request& request) {
  const bool is_published = request.num_published > 0 && !blocks_.is_hidden(request.blocks.front());
  release_windows(request);
  blocks_.discard(request.blocks);
  tiers_.forget(request, is_published);
}

}  // namespace ballast
