#include "sampling/ranking.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/index_range.h"

namespace ballast {
namespace {

// Up to this number of candidates are sorted; more are divided further.
constexpr int64_t kFew = 256;
constexpr int kParts = 256;
// For narrower ranges, the number of buckets per unit of depth would overflow a double.
constexpr double kNarrowest = 1e-200;

Prefix longer(const Prefix& prefix, int64_t count, double weight) {
  return {prefix.count + count, prefix.weight + weight};
}

// Walks over the parts after the prefix `before` up to the part in which the goal is met or, if there is
// none, the last part that is not empty. Returns that part and sets `before` to the prefix that precedes it.
int walk_to_part(const int32_t* counts, const double* weights, int num_parts, Prefix* before,
                 const PrefixGoal& goal) {
  int found = 0;
  Prefix walked = *before;
  for (int part = 0; part < num_parts; ++part) {
    if (counts[part] == 0) continue;
    found = part;
    *before = walked;
    walked = longer(walked, counts[part], weights[part]);
    if (goal.is_met_by(walked)) break;
  }
  return found;
}

// Maps floating-point numbers to integers that have the same order.
template <class Number>
struct OrderedBits {
  using Bits = std::conditional_t<sizeof(Number) == 4, int32_t, int64_t>;

  static Bits of(Number number) {
    Bits bits;
    std::memcpy(&bits, &number, sizeof(bits));
    return flipped_if_negative(bits);
  }
  static Number number(Bits bits) {
    Number number;
    bits = flipped_if_negative(bits);
    std::memcpy(&number, &bits, sizeof(number));
    return number;
  }
  // The midpoint; `high - low` may overflow Bits.
  static Bits middle(Bits low, Bits high) {
    using Size = std::make_unsigned_t<Bits>;
    return low + static_cast<Bits>((static_cast<Size>(high) - static_cast<Size>(low)) / 2);
  }

 private:
  // Flips all bits of a negative number except the sign, because a larger magnitude means a smaller number.
  static Bits flipped_if_negative(Bits bits) {
    return bits ^ (bits < 0 ? std::numeric_limits<Bits>::max() : Bits{0});
  }
};

}  // namespace

template <class Logit>
Ranking<Logit>::Ranking(const SamplingKernels& kernels, const LogitKernels<Logit>& row_kernels,
                        const Logit* row, int64_t n, const Logit* block_peaks, const Weighing& weighing,
                        double range)
    : kernels_(kernels),
      row_kernels_(row_kernels),
      row_(row),
      n_(n),
      slices_(n, nullptr),
      block_peaks_(block_peaks),
      weighing_(weighing),
      buckets_per_depth_(range > kNarrowest ? kRankBuckets / range : 0.0),
      buckets_(slices_.count()),
      first_buckets_(slices_.count()) {}

template <class Logit>
void Ranking<Logit>::fill(int64_t slice) const {
  const IndexRange range = slices_[slice];
  const int first = first_bucket_of(range);
  first_buckets_.get()[slice] = first;
  if (first == kRankBuckets) return;
  row_kernels_.fill_buckets(row_ + range.begin, range.size(), weighing_, buckets_per_depth_,
                            buckets_.get() + slice);
}

template <class Logit>
void Ranking<Logit>::merge() const {
  const int* const firsts = first_buckets_.get();
  RankBuckets& sum = buckets_.get()[0];
  std::fill(sum.weights[0], sum.weights[0] + firsts[0], 0.0);
  std::fill(sum.counts[0], sum.counts[0] + firsts[0], 0);
  for (int64_t slice = 1; slice < slices_.count(); ++slice) {
    const RankBuckets& of_slice = buckets_.get()[slice];
    for (int i = firsts[slice]; i < kRankBuckets; ++i) sum.weights[0][i] += of_slice.weights[0][i];
    for (int i = firsts[slice]; i < kRankBuckets; ++i) sum.counts[0][i] += of_slice.counts[0][i];
  }
}

// Bucket of the slice's highest logit; kRankBuckets if no logit has a weight.
template <class Logit>
int Ranking<Logit>::first_bucket_of(IndexRange range) const {
  const Logit* const peaks = block_peaks_ + range.begin / kLogitBlock;
  const double depth = depth_of(*std::max_element(peaks, peaks + Chunks(range.size(), kLogitBlock).count()));
  if (!(depth <= weighing_.deepest)) return kRankBuckets;
  return static_cast<int>(std::min(depth * buckets_per_depth_, static_cast<double>(kRankBuckets - 1)));
}

template <class Logit>
double Ranking<Logit>::depth_of(Logit logit) const {
  return (weighing_.highest - static_cast<double>(logit)) * weighing_.octaves_per_logit;
}

template <class Logit>
Prefix Ranking<Logit>::all() const {
  Prefix prefix;
  for (int i = 0; i < kRankBuckets; ++i) {
    prefix = longer(prefix, buckets_.get()->counts[0][i], buckets_.get()->weights[0][i]);
  }
  return prefix;
}

template <class Logit>
RankedToken Ranking<Logit>::find(const PrefixGoal& goal) const {
  Prefix before;
  const RankBuckets& buckets = *buckets_.get();
  const int bucket = walk_to_part(buckets.counts[0], buckets.weights[0], kRankBuckets, &before, goal);
  Candidates candidates(buckets.counts[0][bucket]);
  gather(bucket, candidates);
  return find_among(candidates, before, goal);
}

// The smallest logit whose depth is at most `deepest` and whose bucket is before `beyond`. The highest logit
// meets both conditions. Depth and bucket never increase with the logit, so a binary search finds it.
template <class Logit>
Logit Ranking<Logit>::least_with(double deepest, double beyond) const {
  const auto is_reached = [&](Logit logit) {
    const double depth = depth_of(logit);
    return depth <= deepest && depth * buckets_per_depth_ < beyond;
  };
  using Ordered = OrderedBits<Logit>;
  typename Ordered::Bits least = Ordered::of(static_cast<Logit>(weighing_.highest));
  typename Ordered::Bits below = Ordered::of(-std::numeric_limits<Logit>::infinity());
  while (below + 1 < least) {
    const typename Ordered::Bits middle = Ordered::middle(below, least);
    (is_reached(Ordered::number(middle)) ? least : below) = middle;
  }
  return Ordered::number(least);
}

// Adds a bucket's tokens to `to`. Skips blocks whose peak is below the bucket, which most are.
template <class Logit>
void Ranking<Logit>::gather(int bucket, Candidates& to) const {
  constexpr double kNoBound = std::numeric_limits<double>::infinity();
  const double beyond = bucket == kRankBuckets - 1 ? kNoBound : static_cast<double>(bucket + 1);
  const Logit least = least_with(weighing_.deepest, beyond);
  const Logit end = bucket == 0 ? std::numeric_limits<Logit>::infinity()
                                : least_with(kNoBound, static_cast<double>(bucket));
  const Chunks blocks(n_, kLogitBlock);
  for (int64_t i = 0; i < blocks.count(); ++i) {
    if (!(block_peaks_[i] >= least)) continue;
    const int64_t begin = blocks[i].begin;
    int32_t* const ids = to.ids.get() + to.num;
    const int64_t found =
        row_kernels_.gather(row_ + begin, blocks[i].size(), least, end, to.logits.get() + to.num, ids);
    for (int64_t k = 0; k < found; ++k) ids[k] += static_cast<int32_t>(begin);
    to.num += found;
  }
}

// Finds the token among the candidates; `before` is the prefix that precedes them.
template <class Logit>
RankedToken Ranking<Logit>::find_among(Candidates& candidates, Prefix before, const PrefixGoal& goal) const {
  while (candidates.num > kFew) {
    const double* const logits = candidates.logits.get();
    const auto ends = std::minmax_element(logits, logits + candidates.num);
    const double lowest = *ends.first;
    const double highest = *ends.second;
    if (lowest == highest) return find_among_equals(candidates, before, goal);
    narrow(candidates, highest, lowest, &before, goal);
  }
  return find_sorted(candidates, before, goal);
}

// Divides lowest…highest into sub-ranges and keeps, in order, the candidates of the one in which the goal is
// met. Both ends are in different sub-ranges, so each call leaves fewer candidates.
template <class Logit>
void Ranking<Logit>::narrow(Candidates& candidates, double highest, double lowest, Prefix* before,
                            const PrefixGoal& goal) const {
  double* const logits = candidates.logits.get();
  int32_t* const ids = candidates.ids.get();
  const double range = highest - lowest;
  const auto part_of = [&](double logit) {
    return std::min(kParts - 1, static_cast<int>((highest - logit) / range * kParts));
  };
  int32_t counts[kParts] = {};
  double weights[kParts] = {};
  for (int64_t begin = 0; begin < candidates.num; begin += kFew) {
    const int64_t size = std::min(kFew, candidates.num - begin);
    double weight[kFew];
    kernels_.doubles.weigh(logits + begin, size, weighing_, weight);
    for (int64_t i = 0; i < size; ++i) {
      const int part = part_of(logits[begin + i]);
      ++counts[part];
      weights[part] += weight[i];
    }
  }
  const int part = walk_to_part(counts, weights, kParts, before, goal);
  int64_t kept = 0;
  for (int64_t i = 0; i < candidates.num; ++i) {
    if (part_of(logits[i]) != part) continue;
    logits[kept] = logits[i];
    ids[kept] = ids[i];
    ++kept;
  }
  candidates.num = kept;
}

template <class Logit>
RankedToken Ranking<Logit>::find_among_equals(const Candidates& candidates, Prefix before,
                                              const PrefixGoal& goal) const {
  double weight;
  kernels_.doubles.weigh(candidates.logits.get(), 1, weighing_, &weight);
  Prefix through = before;
  for (int64_t i = 0; i < candidates.num; ++i) {
    through = longer(through, 1, weight);
    if (goal.is_met_by(through)) return {candidates.ids.get()[i], through};
  }
  return {candidates.ids.get()[candidates.num - 1], through};
}

template <class Logit>
RankedToken Ranking<Logit>::find_sorted(const Candidates& among, Prefix before,
                                        const PrefixGoal& goal) const {
  struct Candidate {
    double logit;
    int32_t id;
  };
  const int64_t num = among.num;
  Candidate candidates[kFew];
  for (int64_t i = 0; i < num; ++i) candidates[i] = {among.logits.get()[i], among.ids.get()[i]};
  std::sort(candidates, candidates + num, [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  });
  double logits[kFew];
  double weights[kFew];
  for (int64_t i = 0; i < num; ++i) logits[i] = candidates[i].logit;
  kernels_.doubles.weigh(logits, num, weighing_, weights);
  Prefix through = before;
  for (int64_t i = 0; i < num; ++i) {
    through = longer(through, 1, weights[i]);
    if (goal.is_met_by(through)) return {candidates[i].id, through};
  }
  return {candidates[num - 1].id, through};
}

template class Ranking<float>;
template class Ranking<double>;

}  // namespace ballast
