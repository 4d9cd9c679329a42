// Passes over a row of logits, from which a token is chosen, as raw pointers.
//
// Every instruction set computes the same bits: sums are formed in eight lanes, whatever the vectors' length,
// and no product is fused with a sum.
//
// Only plain data here: this header is compiled into objects for instruction sets that the host may not have.
#pragma once

#include <cstdint>

namespace ballast {

// Logits whose weights make one sum.
constexpr int64_t kLogitBlock = 512;

// Of a row. `highest` and `lowest` mean nothing where one is NaN.
struct Peaks {
  double highest;
  double lowest;
  bool has_nan;
};

// A logit lies (highest - logit) * octaves_per_logit deep. Its weight is 2 to the minus that, and 0 where it
// lies deeper than `deepest`, which is at most kDeepest.
struct Weighing {
  double highest;
  double octaves_per_logit;
  double deepest;
};

// 2^-92 is 2e-28, so that all tokens of a vocabulary that lie deeper weigh less than rounding takes.
constexpr double kDeepest = 92.0;

constexpr int kRankBuckets = 1024;

// A row's logits by rank: those that lie d deep are in bucket d * buckets_per_depth, rounded down,
// the first that of the highest. What lies deeper than the last bucket is in it too; what has no weight is
// in none. The second of each pair is scratch: filling two in turns, no addition waits for the one before.
struct RankBuckets {
  double weights[2][kRankBuckets];
  int32_t counts[2][kRankBuckets];
};

template <class Logit>
struct LogitKernels {
  // Writes the highest logit of each block as well, unless one is NaN.
  Peaks (*peaks)(const Logit* row, int64_t n, Logit* block_peaks);
  void (*weigh)(const Logit* row, int64_t n, const Weighing& weighing, double* weights);
  void (*sum_blocks)(const Logit* row, int64_t n, const Weighing& weighing, double* sums);
  void (*fill_buckets)(const Logit* row, int64_t n, const Weighing& weighing, double buckets_per_depth,
                       RankBuckets* buckets);
  // Logits and ids of those that are `least` or more and below `end`, by id; returns how many they are. Both
  // have room for n.
  int64_t (*gather)(const Logit* row, int64_t n, Logit least, Logit end, double* logits, int32_t* ids);
};

struct SamplingKernels {
  LogitKernels<float> floats;
  LogitKernels<double> doubles;
  // out = row, with minus infinity where `allowed` (bit i % 8 of byte i / 8; null for all) has no bit.
  void (*widen)(const float* row, int64_t n, const uint8_t* allowed, double* out);
};

// Runs everywhere.
const SamplingKernels& reference_sampling();

}  // namespace ballast
