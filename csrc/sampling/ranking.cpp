#include "sampling/ranking.h"

#include <algorithm>
#include <limits>

#include "base/index_range.h"

namespace ballast {
namespace {

// So few candidates are sorted; more are divided further.
constexpr int64_t kFew = 256;
constexpr int kParts = 256;
// Narrower ranges would have more buckets a unit of depth than a double can count.
constexpr double kNarrowest = 1e-200;

Prefix longer(const Prefix& prefix, int64_t count, double weight) {
  return {prefix.count + count, prefix.weight + weight};
}

// Walks over the parts of a prefix that follow `before`, up to that in which the goal is met; where none
// does, to the last that is not empty. Returns that part, and sets `before` to what precedes it.
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

}  // namespace

template <class Logit>
Ranking<Logit>::Ranking(const SamplingKernels& kernels, const LogitKernels<Logit>& row_kernels,
                        const Logit* row, int64_t n, const RowSlices& slices, const Logit* block_peaks,
                        const Weighing& weighing, double range)
    : kernels_(kernels),
      row_kernels_(row_kernels),
      row_(row),
      slices_(slices),
      block_peaks_(block_peaks),
      weighing_(weighing),
      buckets_per_depth_(range > kNarrowest ? kRankBuckets / range : 0.0),
      buckets_(slices.count()),
      logits_(n),
      ids_(n) {
  fill();
}

template <class Logit>
void Ranking<Logit>::fill() const {
  const Scratch<int> firsts(slices_.count());
  slices_.for_each([&](int64_t index, IndexRange range) {
    firsts.get()[index] = first_bucket_of(range);
    if (firsts.get()[index] == kRankBuckets) return;
    row_kernels_.fill_buckets(row_ + range.begin, range.size(), weighing_, buckets_per_depth_,
                              buckets_.get() + index);
  });
  RankBuckets& sum = buckets_.get()[0];
  std::fill(sum.weights[0], sum.weights[0] + firsts.get()[0], 0.0);
  std::fill(sum.counts[0], sum.counts[0] + firsts.get()[0], 0);
  for (int64_t index = 1; index < slices_.count(); ++index) {
    const RankBuckets& of_slice = buckets_.get()[index];
    const int first = firsts.get()[index];
    for (int i = first; i < kRankBuckets; ++i) sum.weights[0][i] += of_slice.weights[0][i];
    for (int i = first; i < kRankBuckets; ++i) sum.counts[0][i] += of_slice.counts[0][i];
  }
}

// That of the slice's highest logit; kRankBuckets where none has a weight.
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
  return find_among(gather(bucket), before, goal);
}

// Makes a bucket's tokens the candidates, by id.
template <class Logit>
int64_t Ranking<Logit>::gather(int bucket) const {
  const Scratch<int64_t> counts(slices_.count());
  slices_.for_each(
      [&](int64_t index, IndexRange range) { counts.get()[index] = gather_of_slice(bucket, range); });
  int64_t num = counts.get()[0];
  for (int64_t index = 1; index < slices_.count(); ++index) {
    const int64_t begin = slices_[index].begin;
    const int64_t count = counts.get()[index];
    std::copy(logits_.get() + begin, logits_.get() + begin + count, logits_.get() + num);
    std::copy(ids_.get() + begin, ids_.get() + begin + count, ids_.get() + num);
    num += count;
  }
  return num;
}

// To where the slice begins. Most rows have few blocks that reach up to a bucket.
template <class Logit>
int64_t Ranking<Logit>::gather_of_slice(int bucket, IndexRange range) const {
  const double beyond =
      bucket == kRankBuckets - 1 ? std::numeric_limits<double>::infinity() : static_cast<double>(bucket + 1);
  const Chunks blocks(range.size(), kLogitBlock);
  int64_t num = 0;
  for (int64_t i = 0; i < blocks.count(); ++i) {
    const int64_t begin = range.begin + blocks[i].begin;
    const double depth = depth_of(block_peaks_[begin / kLogitBlock]);
    if (!(depth <= weighing_.deepest) || depth * buckets_per_depth_ >= beyond) continue;
    int32_t* const ids = ids_.get() + range.begin + num;
    const int64_t found =
        row_kernels_.gather_bucket(row_ + begin, blocks[i].size(), weighing_, buckets_per_depth_, bucket,
                                   logits_.get() + range.begin + num, ids);
    for (int64_t k = 0; k < found; ++k) ids[k] += static_cast<int32_t>(begin);
    num += found;
  }
  return num;
}

// Among the candidates that follow `before`.
template <class Logit>
RankedToken Ranking<Logit>::find_among(int64_t num, Prefix before, const PrefixGoal& goal) const {
  while (num > kFew) {
    const auto ends = std::minmax_element(logits_.get(), logits_.get() + num);
    const double lowest = *ends.first;
    const double highest = *ends.second;
    if (lowest == highest) return find_among_equals(num, before, goal);
    num = narrow(num, highest, lowest, &before, goal);
  }
  return find_sorted(num, before, goal);
}

// Keeps, in their order, the candidates of that part of lowest…highest in which the goal is met; both ends
// lie in parts of their own, so there are fewer of them each time.
template <class Logit>
int64_t Ranking<Logit>::narrow(int64_t num, double highest, double lowest, Prefix* before,
                               const PrefixGoal& goal) const {
  double* const logits = logits_.get();
  int32_t* const ids = ids_.get();
  const double range = highest - lowest;
  const auto part_of = [&](double logit) {
    return std::min(kParts - 1, static_cast<int>((highest - logit) / range * kParts));
  };
  int32_t counts[kParts] = {};
  double weights[kParts] = {};
  for (int64_t begin = 0; begin < num; begin += kFew) {
    const int64_t size = std::min(kFew, num - begin);
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
  for (int64_t i = 0; i < num; ++i) {
    if (part_of(logits[i]) != part) continue;
    logits[kept] = logits[i];
    ids[kept] = ids[i];
    ++kept;
  }
  return kept;
}

template <class Logit>
RankedToken Ranking<Logit>::find_among_equals(int64_t num, Prefix before, const PrefixGoal& goal) const {
  double weight;
  kernels_.doubles.weigh(logits_.get(), 1, weighing_, &weight);
  Prefix through = before;
  for (int64_t i = 0; i < num; ++i) {
    through = longer(through, 1, weight);
    if (goal.is_met_by(through)) return {ids_.get()[i], through};
  }
  return {ids_.get()[num - 1], through};
}

template <class Logit>
RankedToken Ranking<Logit>::find_sorted(int64_t num, Prefix before, const PrefixGoal& goal) const {
  struct Candidate {
    double logit;
    int32_t id;
  };
  Candidate candidates[kFew];
  for (int64_t i = 0; i < num; ++i) candidates[i] = {logits_.get()[i], ids_.get()[i]};
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
