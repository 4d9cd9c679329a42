// The KV blocks of requests: how many a request needs, and how it acquires and releases them.
#pragma once

#include <cstdint>

#include "kv/block_manager.h"
#include "sched/tiers/tier_mirror.h"
#include "sched/types/request.h"

namespace ballast {

class RequestBlocks {
 public:
  // `blocks` and `tiers` must outlive this.
  RequestBlocks(int32_t block_tokens, BlockManager& blocks, TierMirror& tiers)
      : block_tokens_(block_tokens), blocks_(blocks), tiers_(tiers) {}

  // Blocks that hold num_tokens, at least 1.
  int32_t num_for(int32_t num_tokens) const { return (num_tokens - 1) / block_tokens_ + 1; }
  // Blocks that a running request lacks to compute num_tokens more.
  int32_t num_missing(const Request& request, int32_t num_tokens) const;
  // Blocks that must be free or cached before a request starts: one more than its tokens take, so that it is
  // not preempted immediately, but at most what it can ever need. Otherwise a request as large as the cache
  // would never be admitted.
  int32_t num_to_admit(const Request& request) const;

  // Begins with the blocks of a match, those that are usable.
  void begin(Request& request);
  // Allocates the blocks that a running request lacks to compute num_tokens more.
  void acquire(Request& request, int32_t num_tokens);
  // Allocates the window blocks that it lacks for a step with num_tokens.
  void acquire_windows(Request& request, int32_t num_tokens);
  // Allocates the window blocks that it will need after its first num_blocks blocks, which it fetches.
  void acquire_fetched_windows(Request& request, int32_t num_blocks);
  // The fetch is over. If it is complete, the request needs the window blocks of these blocks; otherwise it
  // needs those of the blocks that it had before.
  void end_fetch(Request& request, bool is_complete);
  // Makes the request's computed blocks known to the prefix cache and sends them to the tiers. Releases the
  // window blocks that its next token does not see, nor a request that begins after the published blocks.
  void publish(Request& request);
  // Releases the blocks after those that hold num_tokens, which no other request can hold.
  void release_after(Request& request, int32_t num_tokens);
  void release(Request& request);
  // As `release`, and hides all blocks that the request has read or written, in the cache and in the tiers,
  // from other requests.
  void forget(Request& request);

 private:
  bool is_before_border(const Request& request, int32_t index) const;
  void release_windows(Request& request);

  int32_t block_tokens_;
  BlockManager& blocks_;
  TierMirror& tiers_;
};

}  // namespace ballast
