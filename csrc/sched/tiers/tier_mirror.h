// KV offload: mirrors full blocks of the cache to the tiers, and orders fetches from them.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "kv/block_manager.h"
#include "kv/tier.h"
#include "sched/tiers/fetching.h"
#include "sched/tiers/tier_states.h"
#include "sched/types/config.h"
#include "sched/types/plan.h"
#include "sched/types/request.h"

namespace ballast {

// A full block is sent to each tier as soon as it is published, so an eviction costs nothing. If a tier has
// no room, the block is sent later while the cache still holds it, even after the request has ended.
class TierMirror {
 public:
  // `blocks` is the cache's, and must outlive this.
  TierMirror(const SchedulerConfig& config, BlockManager& blocks);

  size_t size() const { return tiers_.size(); }
  // The transfers ordered since the last call.
  std::vector<Transfer> take_transfers();

  // Sets `found`: where the prefix of a waiting request continues behind the cache's match, as far as
  // fetching is faster than computing. If two tiers hold a block, the faster one serves it.
  void match(Request& request, const StepPlanner& planner, int32_t num_decode) const;
  // The request starts: holds the tiers' blocks of its prefix and orders those that were found.
  void begin_fetch(Request& request);
  // Completes the fetch of a request: the first num_blocks arrived. If the next one is damaged, it is hidden;
  // if its state is, that is dropped.
  // Returns the number of usable blocks: 0 if their contents were found to be wrong in the
  // meantime, or if some are missing and layers have a window or recurrent state.
  int32_t end_fetch(Request& request, int32_t num_blocks, Damage damage);
  // Blocks that a tier still has to bring for a request.
  void set_coming(Request& request, int32_t tier, int32_t num_blocks);
  void set_block_seconds(int32_t tier, double block_seconds);
  // Whether everything that a request fetches would still be fetched, given those that fetch before it. If a
  // part is of no use, what has arrived no longer counts.
  bool is_worth_fetching(const Request& request, const std::vector<Request*>& running,
                         const StepPlanner& planner, int32_t num_decode) const;

  // Sends the published blocks of a request that are not in the tiers yet, as far as they have room.
  void mirror(Request& request);
  // The oldest pending store of a tier is complete. If it failed (`is_whole` is false), no further stores are
  // attempted.
  void stored(int32_t tier, bool is_whole, const std::vector<Request*>& running);
  void restore(int32_t tier, const std::vector<BlockId>& blocks, const std::vector<BlockId>& parents,
               const std::vector<int32_t>& tokens, const std::vector<Salt>& salts,
               const std::vector<bool>& have_windows, const std::vector<StateSlot>& states);
  // The same of a state.
  void stored_state(int32_t tier, bool is_whole);
  // Sends the snapshots for which tiers have room.
  void send_states() { states_.send(transfers_); }
  TierStates& states() { return states_; }
  // The cache is about to evict a block: counts its tokens as dropped if no tier has them.
  void note_evicted(BlockId evicted);

  // Releases the tables of a request. The caller releases its blocks in the cache afterwards.
  void release(Request& request);
  // As `release`; additionally, no block that the request read or wrote is reused.
  void forget(Request& request, bool is_published);

  std::vector<TierStats> stats() const;
  int64_t num_unsent() const { return static_cast<int64_t>(unsent_.size()) + states_.num_unsent(); }
  void check(const std::vector<Request*>& running) const;

 private:
  // Blocks of an ended request that tiers had no room for yet.
  struct Unsent {
    std::vector<int32_t> tokens;  // of full blocks only
    Salt salt;
    PrefixMatch match;             // the cache's blocks, which no request holds
    std::vector<TierTable> tiers;  // as the request's
  };
  static constexpr size_t kMostUnsent = 64;

  size_t checked(int32_t tier) const;
  static void check_fetched(const Request& request, int32_t num_blocks, Damage damage);
  static std::vector<Tier> make_tiers(const SchedulerConfig& config);
  void keep_usable(Request& request) const;
  size_t num_usable(const Request& request, size_t num_found) const;
  std::optional<int32_t> tier_with_state(const Request& request, size_t index) const;
  // Whether a fetch is of use only as a whole: a window or a recurrent state is there only after its last
  // block.
  bool needs_all() const { return blocks_.windows().is_used() || blocks_.states().is_used(); }
  void send(size_t tier, TierTable& to, const std::vector<int32_t>& tokens, const Salt& salt,
            const std::vector<BlockId>& blocks, size_t num_blocks);
  void keep_unsent(const Request& request);
  void send_unsent();
  void drop(Unsent& unsent);

  SchedulerConfig config_;
  BlockManager& blocks_;
  std::vector<Tier> tiers_;
  std::vector<Transfer> transfers_;
  std::vector<FetchSpeed> speeds_;                        // by tier
  std::vector<int64_t> fetched_tokens_, dropped_tokens_;  // by tier
  std::vector<std::vector<SentBlock>> sent_;              // by tier and block of the cache
  TierStates states_;
  std::deque<Unsent> unsent_;  // kMostUnsent at most, the oldest first
  int64_t num_fetches_ = 0;
};

}  // namespace ballast
