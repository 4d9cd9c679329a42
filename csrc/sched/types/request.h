// One live request of the scheduler.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "kv/block_manager.h"
#include "sched/types/fair_share.h"
#include "sched/types/lane.h"

namespace ballast {

// The blocks of one tier that hold a request's tokens.
struct TierTable {
  PrefixMatch match;              // as Request::match
  std::vector<BlockId> blocks;    // while it runs: the tier's copies of its first published blocks
  uint64_t num_hides = 0;         // see Tier::release_hidden
  size_t num_noted = 0;           // of `blocks`, those recorded as sent in TierMirror
  int32_t num_coming = 0;         // blocks that the tier still has to bring
  StateSlot fetched = kNullSlot;  // the tier's state that is being fetched
};

// The state of recurrent layers that is left after a number of a request's tokens.
struct StateSave {
  int32_t num_tokens;
  StateSlot slot;
};

// The slots of a request's state, each held; see RequestStates.
struct RequestState {
  StateSlot live = kNullSlot;  // after the computed tokens
  StateSlot kept = kNullSlot;  // after num_kept tokens, which end a block
  int32_t num_kept = 0;
  StateSlot next = kNullSlot;     // while a step is outstanding: after its tokens
  StateSlot fetched = kNullSlot;  // while it fetches: after the tokens that it fetches
  SnapshotUse fetched_use;        // what the tier keeps that state for
  std::vector<StateSave> saves;   // while a step is outstanding: after some of its tokens, ascending
};

// How a request continues a conversation; see SnapshotUses.
struct Continuation {
  int64_t of = 0;         // the conversation's last request, see SnapshotUse; 0: it begins one
  TurnEnds began_at = 0;  // the ends of that request at which this one began
  ExpectedEnds expected;  // where the next one will begin in this one
  bool calls = false;     // the reply has made a call
  bool branches = false;  // the cache has other tokens after those that it knows of this request
};

//        0            num_computed      num_computed + num_planned      tokens.size()
//        |  KV written  |  this step's chunk  |  later chunks            |
//        |  blocks cover all tokens, except a last sampled token that is not planned yet           |
//
// A decode row computes the last token, and draft tokens after it: num_planned is 1 + draft_tokens.size().
struct Request {
  SeqId seq{};
  int64_t arrival = 0;
  int32_t priority = 0;         // lower is served first
  int64_t client = 0;           // clients share the batch fairly
  Turn turn;                    // its client's turn, among requests of the same priority
  std::optional<SeqId> leader;  // the request that computes the same prompt first
  std::vector<int32_t> tokens;  // the prompt, then the generated tokens
  Salt salt;                    // its blocks are shared only with requests of the same salt
  int32_t prompt_tokens = 0;
  int32_t max_tokens = 0;
  int64_t min_tokens = 0;  // may exceed max_tokens: then no stop token counts
  std::vector<int32_t> stop_tokens;
  std::vector<int32_t> draft_tokens;  // predicted tokens after `tokens`, for the next decode row
  // Of layers with recurrent state: numbers of prompt tokens, each a multiple of block_tokens, ascending,
  // after which a snapshot is wanted; and tokens before the first one of which in the reply it is.
  std::vector<int32_t> snapshots_at;
  std::vector<int32_t> snapshot_before;

  std::vector<BlockId> blocks;
  PrefixMatch match;             // while it waits: the cached prefix at the last look-up
  std::vector<TierTable> tiers;  // as configured
  std::vector<int32_t> found;    // while it waits: the tier that holds each block after `match`
  std::vector<int32_t> fetches;  // while it fetches: the tier of each block after those computed
  int32_t num_computed = 0;
  int32_t num_planned = 0;           // tokens of the outstanding plan
  Lane lane = Lane::kDecode;         // the lane of that plan
  Lane prompt_lane = Lane::kDecode;  // the lane that computes its prompt, as of this assignment
  int64_t assignment = 0;            // see PromptLanes
  int32_t num_planned_ahead = 0;     // tokens after them that already have blocks
  int32_t num_published = 0;         // leading blocks that the prefix cache knows
  int32_t num_known = 0;             // leading blocks that it knew when the request started
  int32_t num_cut = 0;  // blocks that cache and tiers have after those that it can use, at the last look-up
  int32_t windows_begin = 0;  // of `blocks`, the first one whose window block the request needs,
  int32_t windows_end = 0;    // and the one after the last; see WindowBlocks
  int32_t fetched_begin = 0;  // the same of blocks that are being fetched, for the tokens after them
  int32_t fetched_end = 0;
  RequestState state;  // of recurrent layers
  Continuation continuation;
  int32_t num_cached_tokens = 0;  // prompt tokens served by the prefix cache at the first admission
  int64_t fetch_number = 0;       // counts fetches, in the order in which they were ordered
  bool fetches_first = false;     // fetched tokens count as cached, and show which conversation it continues
  bool scores_prompt = false;     // computes every prompt token; does not read the prefix cache
  bool admitted_before = false;
  bool has_slot = false;  // counts towards max_batch_size: it runs and does not fetch
  bool decodes = false;   // planned as a decode row
  bool aborted = false;   // to be freed at commit
  bool failed = false;    // aborted, and the step's results are not published
  bool forget = false;    // failed, and its blocks must not be reused

  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_generated() const { return num_tokens() - prompt_tokens; }
  int32_t num_uncomputed() const { return num_tokens() - num_computed; }
  bool is_planned() const { return num_planned > 0; }
  bool is_fetching() const { return !fetches.empty(); }
  bool can_run() const { return !is_planned() && !is_fetching(); }
  bool wants_decode() const { return num_generated() > 0 && num_uncomputed() == 1; }
  // Whether a running request has prompt tokens that a step can take now.
  bool continues_prompt() const { return can_run() && has_slot && !wants_decode(); }
  // Tokens of the outstanding plan whose logits are sampled: the last of `tokens`, and draft tokens.
  int32_t num_samples() const { return std::max(0, num_planned - num_uncomputed() + 1); }
  int32_t num_planned_drafts() const { return std::max(0, num_planned - num_uncomputed()); }
  // The token at a position; 0 if it is not known yet.
  int32_t token_at(int32_t position) const {
    const size_t index = static_cast<size_t>(position);
    if (index < tokens.size()) return tokens[index];
    const size_t draft = index - tokens.size();
    return draft < draft_tokens.size() ? draft_tokens[draft] : 0;
  }
  // Tokens whose KV is written if the request runs to its end. The last sampled token is never read back.
  int32_t num_kv_tokens_at_most() const { return prompt_tokens + max_tokens - 1; }
  bool comes_before(const Request& other) const {
    if (priority != other.priority) return priority < other.priority;
    return turn != other.turn ? turn < other.turn : arrival < other.arrival;
  }
  bool shares_queue_with(const Request& other) const {
    return priority == other.priority && client == other.client;
  }
  bool stops_at(int32_t token) const {
    return std::find(stop_tokens.begin(), stop_tokens.end(), token) != stop_tokens.end();
  }
};

}  // namespace ballast
