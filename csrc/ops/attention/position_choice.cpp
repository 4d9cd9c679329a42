#include "ops/attention/position_choice.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/index_range.h"
#include "base/scratch.h"
#include "ops/transpose.h"

namespace ballast {
namespace {

// Positions of a task, whose keys stay in the second-level cache while several tokens score them.
constexpr int64_t kTaskPositions = 10 * kSpanPositions;
// Most floats of queries and scores that a call holds at a time, unless a single token needs more.
constexpr int64_t kMostFloats = int64_t{16} << 20;

// As scores are ordered, so are these; -0 and 0 are one.
uint32_t order_of(float score) {
  const float normal = score + 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &normal, sizeof(bits));
  if (normal != normal) return UINT32_MAX;
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// The kth highest order, and how many of the scores with this order to take.
struct Border {
  uint32_t order;
  int64_t num_equal;
};

// Goes down from the highest digit until `left` are counted, which becomes how many are left at that digit.
uint32_t digit_of(const int32_t* counts, uint32_t highest, int64_t& left) {
  uint32_t digit = highest;
  while (counts[digit] < left) left -= counts[digit--];
  return digit;
}

// By digits of eleven, eleven and ten bits: the first one's border leaves few candidates for the others.
Border find_border(const float* scores, int64_t num_scores, int64_t k) {
  constexpr int kBits = 11;
  constexpr uint32_t kDigits = 1u << kBits;
  constexpr int kTables = 4;  // neighbouring scores that increment the same counter would wait for each other
  const Scratch<uint32_t> orders(num_scores);
  const Scratch<int32_t> tables(kTables * kDigits);
  int32_t* counts = tables.get();
  std::fill_n(counts, kTables * kDigits, 0);
  uint32_t* candidates = orders.get();
  for (int64_t i = 0; i < num_scores; ++i) {
    candidates[i] = order_of(scores[i]);
    ++counts[(i % kTables) * kDigits + (candidates[i] >> 21)];
  }
  for (uint32_t digit = 0; digit < kDigits; ++digit) {
    for (int table = 1; table < kTables; ++table) counts[digit] += counts[table * kDigits + digit];
  }
  int64_t left = k;
  int64_t num_candidates = num_scores;
  uint32_t border = 0;
  int shift = 32 - kBits;
  const auto narrow = [&](uint32_t digit) {
    border |= digit << shift;
    int64_t kept = 0;
    for (int64_t i = 0; i < num_candidates; ++i) {
      const uint32_t order = candidates[i];
      candidates[kept] = order;
      kept += (order >> shift) == (border >> shift);
    }
    num_candidates = kept;
  };
  narrow(digit_of(counts, kDigits - 1, left));
  for (const int bits : {kBits, 32 - 2 * kBits}) {
    shift -= bits;
    const uint32_t highest = (1u << bits) - 1;
    std::fill_n(counts, kDigits, 0);
    for (int64_t i = 0; i < num_candidates; ++i) ++counts[(candidates[i] >> shift) & highest];
    narrow(digit_of(counts, highest, left));
  }
  return {border, left};
}

int64_t padded_rows(int64_t num_heads) { return Chunks(num_heads, kAttentionRows).count() * kAttentionRows; }

int64_t query_floats(int64_t num_heads, int64_t key_width) {
  return padded_rows(num_heads) * (key_width + 1);
}

// A token of a request that sees more positions than are chosen.
struct ScoredToken {
  int64_t token;
  const int32_t* blocks;
  int64_t num_positions;
  int64_t first_float;  // of its query, its weights and its scores, in a round's memory
};

// A call's constants, and its steps on one token.
class Scorer {
 public:
  Scorer(const AttentionKernels& kernels, const float* queries, const float* weights, const CacheRows& keys,
         int64_t block_tokens, const IndexShape& shape, float* memory)
      : kernels_(kernels),
        queries_(queries),
        weights_(weights),
        keys_(keys),
        block_tokens_(block_tokens),
        shape_(shape),
        num_rows_(padded_rows(shape.num_heads)),
        memory_(memory) {}

  float* query_of(const ScoredToken& scored) const { return memory_ + scored.first_float; }
  float* weights_of(const ScoredToken& scored) const {
    return query_of(scored) + num_rows_ * shape_.key_width;
  }
  float* scores_of(const ScoredToken& scored) const { return weights_of(scored) + num_rows_; }

  // Lays the token's query out as kernels read it, a row a head.
  void gather(const ScoredToken& scored) const {
    const int64_t num_heads = shape_.num_heads;
    float* query = query_of(scored);
    std::fill_n(query, num_rows_ * (shape_.key_width + 1), 0.0f);
    transpose(queries_ + scored.token * num_heads * shape_.key_width, shape_.key_width, num_heads,
              shape_.key_width, query, num_rows_);
    std::copy_n(weights_ + scored.token * num_heads, num_heads, weights_of(scored));
  }

  void score(const ScoredToken& scored, IndexRange positions) const {
    const bool are_halves = keys_.plane.is_half;
    const int64_t stride = are_halves ? Chunks(shape_.key_width, kAttentionRows).count() * kAttentionRows : 0;
    const Scratch<float> memory((num_rows_ + stride) * kSpanPositions);
    float* products = memory.get();
    const void* keys[kTaskPositions];
    for (int64_t at = positions.begin; at < positions.end; ++at) {
      const int64_t slot = scored.blocks[at / block_tokens_] * block_tokens_ + at % block_tokens_;
      keys[at - positions.begin] = keys_.plane.at(slot * keys_.slot_stride);
    }
    kernels_.index({query_of(scored),
                    weights_of(scored),
                    num_rows_,
                    {keys, are_halves, products + num_rows_ * kSpanPositions, stride},
                    positions.size(),
                    shape_.key_width,
                    products},
                   scores_of(scored) + positions.begin);
  }

 private:
  const AttentionKernels& kernels_;
  const float* queries_;
  const float* weights_;
  const CacheRows& keys_;
  const int64_t block_tokens_;
  const IndexShape& shape_;
  const int64_t num_rows_;
  float* memory_;
};

struct Task {
  size_t scored;  // its index
  IndexRange positions;
};

// Neighbouring tokens score the same positions one after another.
std::vector<Task> cut(const std::vector<ScoredToken>& round) {
  std::vector<Task> tasks;
  int64_t longest = 0;
  for (const ScoredToken& scored : round) longest = std::max(longest, scored.num_positions);
  for (int64_t begin = 0; begin < longest; begin += kTaskPositions) {
    for (size_t i = 0; i < round.size(); ++i) {
      const int64_t end = std::min(begin + kTaskPositions, round[i].num_positions);
      if (begin < end) tasks.push_back({i, {begin, end}});
    }
  }
  return tasks;
}

}  // namespace

int64_t choose_top(const float* scores, int64_t num_scores, int64_t k, int32_t* chosen) {
  if (num_scores <= k) {
    std::iota(chosen, chosen + num_scores, 0);
    return num_scores;
  }
  if (k < 1) return 0;
  Border border = find_border(scores, num_scores, k);
  int64_t count = 0;
  for (int64_t i = 0; count < k; ++i) {
    const uint32_t order = order_of(scores[i]);
    if (order < border.order || (order == border.order && border.num_equal-- <= 0)) continue;
    chosen[count++] = static_cast<int32_t>(i);
  }
  return count;
}

void choose_positions(ThreadPool& pool, const Kernels* kernels, const float* queries, const float* weights,
                      const CacheRows& keys, const PagedBatch& batch, const IndexShape& shape,
                      int32_t* chosen, int32_t* counts) {
  const int64_t a_query = query_floats(shape.num_heads, shape.key_width);
  std::vector<ScoredToken> round;
  int64_t num_floats = 0;
  const auto finish_round = [&] {
    if (round.empty()) return;
    const Scratch<float> memory(num_floats);
    const Scorer scorer(attention_kernels(kernels), queries, weights, keys, batch.block_tokens, shape,
                        memory.get());
    const int64_t num_scored = static_cast<int64_t>(round.size());
    pool.parallel_for(num_scored, [&](int64_t i) { scorer.gather(round[static_cast<size_t>(i)]); });
    const std::vector<Task> tasks = cut(round);
    pool.parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
      const Task& task = tasks[static_cast<size_t>(i)];
      scorer.score(round[task.scored], task.positions);
    });
    pool.parallel_for(num_scored, [&](int64_t i) {
      const ScoredToken& scored = round[static_cast<size_t>(i)];
      choose_top(scorer.scores_of(scored), scored.num_positions, shape.top_k,
                 chosen + scored.token * shape.top_k);
    });
    round.clear();
    num_floats = 0;
  };

  for (int64_t request = 0; request < batch.num_requests; ++request) {
    const int32_t* blocks = batch.kv_indices + batch.kv_indptr[request];
    for (int64_t token = batch.query_indptr[request]; token < batch.query_indptr[request + 1]; ++token) {
      const int64_t num_positions = int64_t{batch.positions[token]} + 1;
      counts[token] = static_cast<int32_t>(std::min(num_positions, shape.top_k));
      if (num_positions <= shape.top_k) {
        std::iota(chosen + token * shape.top_k, chosen + token * shape.top_k + num_positions, 0);
        continue;
      }
      const int64_t needed = a_query + num_positions;
      if (num_floats + needed > kMostFloats) finish_round();
      round.push_back({token, blocks, num_positions, num_floats});
      num_floats += needed;
    }
  }
  finish_round();
}

int64_t position_choice_bytes(int64_t num_heads, int64_t key_width, int64_t num_tokens, int64_t num_positions,
                              int num_threads) {
  const int64_t a_token = query_floats(num_heads, key_width) + num_positions;
  const int64_t num_floats = std::max(a_token, std::min(num_tokens * a_token, kMostFloats));
  const int64_t num_orders = std::min<int64_t>(num_tokens, num_threads) * num_positions;
  return (num_floats + num_orders) * int64_t{sizeof(float)};
}

}  // namespace ballast
