// Passes over a row of logits, from which a token is sampled.
//
// Every instruction set computes the same bits: sums use eight lanes for all vector lengths, and no
// multiply-add is fused.
//
// Only plain data: this header is compiled into objects for instruction sets that the host may not have.
#pragma once

#include <cstdint>

namespace ballast {

// Logits whose weights form one sum.
constexpr int64_t kLogitBlock = 512;

// The extremes of a row. `highest` and `lowest` are undefined if a logit is NaN.
struct Peaks {
  double highest;
  double lowest;
  bool has_nan;
};

// The depth of a logit is (highest - logit) * octaves_per_logit. Its weight is 2^-depth, or 0 if the depth
// exceeds `deepest`, which is at most kDeepest.
struct Weighing {
  double highest;
  double octaves_per_logit;
  double deepest;
};

// 2^-92 is 2e-28: all deeper tokens of a vocabulary together weigh less than the rounding error.
constexpr double kDeepest = 92.0;

constexpr double kOctavesPerNat = 1.4426950408889634;  // 1 / ln 2

constexpr int kRankBuckets = 1024;

// The logits of a row by rank: bucket floor(depth * buckets_per_depth); deeper logits are in the last bucket,
// logits without weight in none. The second of each pair is scratch: alternating between two avoids waiting.
struct RankBuckets {
  double weights[2][kRankBuckets];
  int32_t counts[2][kRankBuckets];
};

template <class Logit>
struct LogitKernels {
  // Also writes the highest logit of each block, unless one is NaN.
  Peaks (*peaks)(const Logit* row, int64_t n, Logit* block_peaks);
  void (*weigh)(const Logit* row, int64_t n, const Weighing& weighing, double* weights);
  void (*sum_blocks)(const Logit* row, int64_t n, const Weighing& weighing, double* sums);
  void (*fill_buckets)(const Logit* row, int64_t n, const Weighing& weighing, double buckets_per_depth,
                       RankBuckets* buckets);
  // Logits and ids of the logits from `least` to below `end`, by id. Returns their number. Both arrays hold
  // n.
  int64_t (*gather)(const Logit* row, int64_t n, Logit least, Logit end, double* logits, int32_t* ids);
};

struct SamplingKernels {
  LogitKernels<float> floats;
  LogitKernels<double> doubles;
  // out = row, with minus infinity for tokens without a bit in `allowed` (bit i % 8 of byte i / 8; null: all
  // are allowed).
  void (*widen)(const float* row, int64_t n, const uint8_t* allowed, double* out);
};

// Runs on every CPU.
const SamplingKernels& reference_sampling();

}  // namespace ballast
