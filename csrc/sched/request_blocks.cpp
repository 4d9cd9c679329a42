#include "sched/request_blocks.h"

#include <algorithm>

namespace ballast {

int32_t RequestBlocks::num_missing(const Request& request, int32_t num_tokens) const {
  return std::max(0,
                  num_for(request.num_computed + num_tokens) - static_cast<int32_t>(request.blocks.size()));
}

int32_t RequestBlocks::num_to_admit(const Request& request) const {
  return std::min(num_for(request.num_tokens()) + 1, num_for(request.num_kv_tokens_at_most()));
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
}

void RequestBlocks::release_after(Request& request, int32_t num_tokens) {
  const size_t num_kept = static_cast<size_t>(num_for(num_tokens));
  for (; request.blocks.size() > num_kept; request.blocks.pop_back()) blocks_.release(request.blocks.back());
}

void RequestBlocks::release(Request& request) {
  tiers_.release(request);
  blocks_.release(request.blocks);
}

void RequestBlocks::forget(Request& request) {
  const bool is_published = request.num_published > 0 && !blocks_.is_hidden(request.blocks.front());
  blocks_.discard(request.blocks);
  tiers_.forget(request, is_published);
}

}  // namespace ballast
