// The work of a step and its effects: structures of arrays that the engine reads without copies.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "kv/state_slots.h"

namespace ballast {

// The tokens of one step in one lane. Filled by Scheduler::plan, immutable afterwards.
// Rows: first the decode rows, then the prefill chunks, each group in the order of service.
struct Plan {
  std::vector<SeqId> seqs;            // [rows]
  std::vector<int32_t> query_indptr;  // [rows + 1]
  std::vector<int32_t> token_ids;     // [tokens]
  std::vector<int32_t> earlier_ids;   // [rows, kEarlierTokens] before a row, the nearest last; or kNoToken
  std::vector<int32_t> positions;     // [tokens]
  std::vector<int32_t> slots;         // [tokens] block * block_tokens + offset
  std::vector<int32_t> kv_indptr;     // [rows + 1]
  std::vector<BlockId> kv_indices;    // blocks of all rows, flattened
  // Of layers that free what is behind their windows, as `slots` and `kv_indices`, the null block for blocks
  // that no token of the row sees. Empty without a window.
  std::vector<int32_t> window_slots;    // [tokens]
  std::vector<BlockId> window_indices;  // as many as kv_indices
  // Slots of recurrent state: before a row's tokens, after them, and after some of them. Empty without such
  // state.
  std::vector<StateSlot> states_in;   // [rows]
  std::vector<StateSlot> states_out;  // [rows]; differs from states_in unless no other row reads it
  std::vector<int32_t> save_indptr;   // [rows + 1]
  std::vector<int32_t> save_ends;     // [saves] how many of the row's tokens precede it, ascending
  std::vector<StateSlot> save_slots;  // [saves]
  std::vector<int32_t> kv_lens;       // [rows] tokens, including this step's
  std::vector<int32_t> samples;       // [rows] number of last tokens of the row whose logits are sampled
  std::vector<int64_t> logits_at;     // [samples of all rows] the indices of those tokens, ascending
  std::vector<SeqId> preempted;       // requests that this step preempted, in order
  int32_t num_decode = 0;
  bool was_predicted = false;  // plan_ahead() predicted this plan, except token_ids

  int32_t num_requests() const { return static_cast<int32_t>(seqs.size()); }
  int32_t num_tokens() const { return static_cast<int32_t>(token_ids.size()); }
  int32_t num_samples() const { return static_cast<int32_t>(logits_at.size()); }
};

enum class Finish : uint8_t { kNone = 0, kStop = 1, kLength = 2 };

// The tokens that a step added, in plan order: one or more per sampled row that was not aborted. Filled by
// Scheduler::commit.
struct Committed {
  std::vector<SeqId> seqs;
  std::vector<int32_t> tokens;
  std::vector<Finish> finish;
};

// Why a fetch ended early, if something was damaged: the next block, or only the recurrent state after it.
enum class Damage : uint8_t { kNone, kBlock, kState };

enum class Move : uint8_t { kStore = 0, kDrop = 1, kFetch = 2, kStoreState = 3 };

// A transfer of one block of a tier, or of the recurrent state after it. A tier executes its transfers in the
// order of the requests.
struct Transfer {
  Move move;
  int32_t tier;
  BlockId tier_block;
  // Store: the device's block to copy out, before a later step or fetch overwrites it. Fetch: the device's
  // block to copy to. Drop: none; the contents of the tier's block and of its successors must never be
  // restored.
  BlockId block = kNullBlock;
  // The same of layers with a window. Store: kNullBlock if its contents are gone, and the tier's block has
  // none. Fetch: kNullBlock if the request does not need them; what is copied to it is never read.
  BlockId window_block = kNullBlock;
  BlockId parent = kNullBlock;       // store only: the tier's block with the preceding tokens, or none
  std::vector<int32_t> tokens = {};  // store only: [block_tokens]
  Salt salt = {};                    // store only
  SeqId seq{};                       // fetch only: the sequence; its fetches are consecutive
  // Store of a state: the tier's place for it, and the slot to copy out, before a later step or fetch
  // overwrites it. Fetch: the same to bring it back along with the block, or null slots.
  StateSlot tier_state = kNullSlot;
  StateSlot state = kNullSlot;
};

struct TierStats {
  int64_t capacity_tokens;
  int64_t cached_tokens;   // in the tier's blocks
  int64_t fetched_tokens;  // total fetched from the tier
  int64_t dropped_tokens;  // total evicted from the cache before they were sent
  int64_t states;          // recurrent states in the tier
};

struct Stats {
  int64_t waiting, running;
  int64_t capacity_tokens, used_tokens, cached_tokens;
  int64_t window_used_tokens, window_cached_tokens;  // in window blocks, see WindowBlocks
  int64_t preemptions, prefix_query_tokens, prefix_hit_tokens;
  int64_t prefix_cut_tokens;  // known tokens of prompts after the last state or window that was there
  int64_t snapshots;          // of recurrent state, see StateSlots
  int64_t snapshot_hits;      // total requests that began at one
  int64_t snapshots_evicted;  // total, in the cache
  int64_t state_slots, state_slots_used;  // slots, and those that requests hold
  int64_t fetching;                       // of `waiting`, requests whose blocks are being fetched
  int64_t unsent;                // ended requests with blocks, and snapshots, that are still to be sent
  std::vector<TierStats> tiers;  // as configured
};

// A one-line description of a live sequence, for logs and debugging.
struct Description {
  SeqId seq;
  const char* state;
  int32_t num_tokens, num_computed_tokens, num_blocks;
};

}  // namespace ballast
