// Finds a row's tokens by rank without sorting the whole row. Tokens are ranked by descending probability,
// ties by ascending id. Tokens without a weight (cpu/sampling.h) have no rank.
#pragma once

#include <cstdint>

#include "base/scratch.h"
#include "cpu/sampling.h"
#include "sampling/slices.h"

namespace ballast {

// The tokens up to some rank: their number and total weight.
struct Prefix {
  int64_t count = 0;
  double weight = 0.0;
};

// The condition that the wanted prefix meets.
class PrefixGoal {
 public:
  static PrefixGoal count(int64_t count) { return {count, 0.0, false}; }
  static PrefixGoal weight(double weight) { return {0, weight, false}; }
  static PrefixGoal more_than(double weight) { return {0, weight, true}; }

  bool is_met_by(const Prefix& prefix) const {
    if (count_ > 0) return prefix.count >= count_;
    return is_strict_ ? prefix.weight > weight_ : prefix.weight >= weight_;
  }

 private:
  PrefixGoal(int64_t count, double weight, bool is_strict)
      : count_(count), weight_(weight), is_strict_(is_strict) {}

  int64_t count_;
  double weight_;
  bool is_strict_;
};

struct RankedToken {
  int32_t token;
  Prefix through;  // including the token itself
};

template <class Logit>
class Ranking {
 public:
  // block_peaks: from LogitKernels::peaks. range: the depth that the buckets divide; it should contain the
  // wanted prefix. The row must have a finite peak. All pointers must outlive the ranking.
  Ranking(const SamplingKernels& kernels, const LogitKernels<Logit>& row_kernels, const Logit* row, int64_t n,
          const Logit* block_peaks, const Weighing& weighing, double range);

  // Call it once per slice, on any thread.
  void fill(int64_t slice) const;
  // Call it after all slices are filled and before the functions below.
  void merge() const;

  Prefix all() const;

  // The last token of the shortest prefix that meets the goal. If rounding makes every prefix miss it, the
  // last token of all.
  RankedToken find(const PrefixGoal& goal) const;

 private:
  // Tokens among which the search continues, ordered by id.
  struct Candidates {
    explicit Candidates(int64_t most) : logits(most), ids(most) {}

    Scratch<double> logits;
    Scratch<int32_t> ids;
    int64_t num = 0;
  };

  int first_bucket_of(IndexRange range) const;
  double depth_of(Logit logit) const;
  Logit least_with(double deepest, double beyond) const;
  void gather(int bucket, Candidates& to) const;
  RankedToken find_among(Candidates& candidates, Prefix before, const PrefixGoal& goal) const;
  RankedToken find_sorted(const Candidates& candidates, Prefix before, const PrefixGoal& goal) const;
  RankedToken find_among_equals(const Candidates& candidates, Prefix before, const PrefixGoal& goal) const;
  void narrow(Candidates& candidates, double highest, double lowest, Prefix* before,
              const PrefixGoal& goal) const;

  const SamplingKernels& kernels_;
  const LogitKernels<Logit>& row_kernels_;
  const Logit* row_;
  int64_t n_;
  RowSlices slices_;
  const Logit* block_peaks_;
  Weighing weighing_;
  double buckets_per_depth_;
  // One per slice; `merge` adds all of them to the first.
  Scratch<RankBuckets> buckets_;
  // Bucket of each slice's highest logit; kRankBuckets if no logit has a weight.
  Scratch<int> first_buckets_;
};

}  // namespace ballast
