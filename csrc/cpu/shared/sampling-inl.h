// Passes over a row of logits (cpu/sampling.h), in groups of eight lanes of doubles. GCC and Clang define +,
// * and < for vectors lane by lane; kDoubleLanes and lane_bits come from simd.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/sampling.h"

namespace ballast {
namespace {

constexpr int kGroup = 8;
constexpr int kEightVectors = kGroup / kDoubleLanes;

typedef double Doubles __attribute__((vector_size(8 * kDoubleLanes)));
typedef float DoublesAsFloats __attribute__((vector_size(4 * kDoubleLanes)));
typedef int32_t DoublesAsInts __attribute__((vector_size(4 * kDoubleLanes)));

// Eight lanes.
struct Eight {
  Doubles vector[kEightVectors];
};

BALLAST_INLINE Doubles all_lanes(double value) { return Doubles{} + value; }
BALLAST_INLINE Longs bits_of_doubles(Doubles a) { return reinterpret_cast<Longs>(a); }
BALLAST_INLINE Doubles zero_unless(Longs where, Doubles a) {
  return reinterpret_cast<Doubles>(where & bits_of_doubles(a));
}

BALLAST_INLINE void load_lanes(const double* from, Eight& to) {
  for (int i = 0; i < kEightVectors; ++i)
    __builtin_memcpy(&to.vector[i], from + i * kDoubleLanes, sizeof(Doubles));
}
BALLAST_INLINE void load_lanes(const float* from, Eight& to) {
  for (int i = 0; i < kEightVectors; ++i) {
    DoublesAsFloats vector;
    __builtin_memcpy(&vector, from + i * kDoubleLanes, sizeof(vector));
    to.vector[i] = __builtin_convertvector(vector, Doubles);
  }
}

// All lanes, or the first `left` if there are fewer.
BALLAST_INLINE void store_lanes(const Eight& lanes, int64_t left, double* to) {
  if (left >= kGroup) {
    for (int i = 0; i < kEightVectors; ++i)
      __builtin_memcpy(to + i * kDoubleLanes, &lanes.vector[i], sizeof(Doubles));
  } else {
    __builtin_memcpy(to, &lanes, static_cast<size_t>(left) * sizeof(double));
  }
}

// (ln 2)^k / k!
constexpr double kPowerTerms[] = {1.0,
                                  0x1.62e42fefa39efp-1,
                                  0x1.ebfbdff82c58fp-3,
                                  0x1.c6b08d704a0c0p-5,
                                  0x1.3b2ab6fba4e77p-7,
                                  0x1.5d87fe78a6731p-10,
                                  0x1.430912f86c787p-13,
                                  0x1.ffcbfc588b0c7p-17,
                                  0x1.62c0223a5c824p-20,
                                  0x1.b5253d395e7c4p-24,
                                  0x1.e4cf5158b8ecap-28,
                                  0x1.e8cac7351bb25p-32};

// One fixed order for all vector lengths.
BALLAST_INLINE double sum_of_lanes(const Eight& a) {
  double lane[kGroup];
  __builtin_memcpy(lane, &a, sizeof(lane));
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

// 2^-depth, within 1 in 10^14 for 0 <= depth <= kDeepest, exact for 0.
BALLAST_INLINE Doubles power_of_minus(Doubles depth) {
  // Subtracting from 1.5 * 2^52 rounds to an integer, which is then in the low bits.
  const Doubles shifted = 0x1.8p52 - depth;
  const Doubles r = (0x1.8p52 - shifted) - depth;
  // Taylor series of 2^r to the eleventh power: |r| <= 0.5, so the remainder is below 7e-15.
  Doubles sum = r * kPowerTerms[11] + kPowerTerms[10];
#pragma GCC unroll 10
  for (int term = 9; term >= 0; --term) sum = sum * r + kPowerTerms[term];
  // Times 2 to an integer power of -93 or more.
  return reinterpret_cast<Doubles>(bits_of_doubles(sum) + (bits_of_doubles(shifted) << 52));
}

// Calls step(lanes, index) for each group of eight. Missing lanes of the last group are minus infinity.
template <class Logit, class Step>
BALLAST_INLINE void for_groups(const Logit* row, int64_t n, const Step& step) {
  int64_t i = 0;
  for (; i + kGroup <= n; i += kGroup) {
    Eight lanes;
    load_lanes(row + i, lanes);
    step(lanes, i);
  }
  if (i == n) return;
  Logit rest[kGroup];
  for (int lane = 0; lane < kGroup; ++lane)
    rest[lane] = i + lane < n ? row[i + lane] : static_cast<Logit>(-__builtin_inf());
  Eight lanes;
  load_lanes(rest, lanes);
  step(lanes, i);
}

// The depths of a group's logits, and the lanes that have a weight.
struct Depths {
  Eight depth;
  Longs live[kEightVectors];
  unsigned live_bits;
};

BALLAST_INLINE void find_depths(const Eight& lanes, const Weighing& weighing, Depths& out) {
  out.live_bits = 0;
  for (int i = 0; i < kEightVectors; ++i) {
    out.depth.vector[i] = (weighing.highest - lanes.vector[i]) * weighing.octaves_per_logit;
    out.live[i] = out.depth.vector[i] <= all_lanes(weighing.deepest);
    out.live_bits |= lane_bits(out.live[i]) << (i * kDoubleLanes);
  }
}

BALLAST_INLINE void find_weights(const Depths& depths, Eight& out) {
  for (int i = 0; i < kEightVectors; ++i)
    out.vector[i] = zero_unless(depths.live[i], power_of_minus(depths.depth.vector[i]));
}

template <class Logit>
struct Lanes;
template <>
struct Lanes<float> {
  typedef float Vector __attribute__((vector_size(8 * kDoubleLanes)));
  typedef int32_t Where __attribute__((vector_size(8 * kDoubleLanes)));
};
template <>
struct Lanes<double> {
  typedef Doubles Vector;
  typedef Longs Where;
};

template <class Logit>
Peaks find_peaks(const Logit* row, int64_t n, Logit* block_peaks) {
  using Vector = typename Lanes<Logit>::Vector;
  using Where = typename Lanes<Logit>::Where;
  constexpr int kLanes = static_cast<int>(sizeof(Vector) / sizeof(Logit));
  Vector lowest = Vector{} + static_cast<Logit>(__builtin_inf());
  Where nan{};
  Logit highest = static_cast<Logit>(-__builtin_inf());
  Logit lowest_of_rest = static_cast<Logit>(__builtin_inf());
  bool has_nan = false;
  for (int64_t begin = 0; begin < n; begin += kLogitBlock) {
    const int64_t end = begin + kLogitBlock < n ? begin + kLogitBlock : n;
    Vector most = Vector{} - static_cast<Logit>(__builtin_inf());
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      Vector lanes;
      __builtin_memcpy(&lanes, row + i, sizeof(lanes));
      most = lanes > most ? lanes : most;
      lowest = lanes < lowest ? lanes : lowest;
      nan |= lanes != lanes;
    }
    Logit of_block = most[0];
    for (int lane = 1; lane < kLanes; ++lane) of_block = most[lane] > of_block ? most[lane] : of_block;
    for (; i < end; ++i) {
      of_block = row[i] > of_block ? row[i] : of_block;
      lowest_of_rest = row[i] < lowest_of_rest ? row[i] : lowest_of_rest;
      has_nan |= row[i] != row[i];
    }
    block_peaks[begin / kLogitBlock] = of_block;
    highest = of_block > highest ? of_block : highest;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    lowest_of_rest = lowest[lane] < lowest_of_rest ? lowest[lane] : lowest_of_rest;
    has_nan |= nan[lane] != 0;
  }
  return {static_cast<double>(highest), static_cast<double>(lowest_of_rest), has_nan};
}

template <class Logit>
void weigh(const Logit* row, int64_t n, const Weighing& weighing, double* weights) {
  for_groups(row, n, [&](const Eight& lanes, int64_t at) {
    Depths depths;
    Eight weight;
    find_depths(lanes, weighing, depths);
    find_weights(depths, weight);
    store_lanes(weight, n - at, weights + at);
  });
}

template <class Logit>
void sum_blocks(const Logit* row, int64_t n, const Weighing& weighing, double* sums) {
  for (int64_t begin = 0; begin < n; begin += kLogitBlock) {
    const int64_t size = begin + kLogitBlock < n ? kLogitBlock : n - begin;
    Eight sum{};
    for_groups(row + begin, size, [&](const Eight& lanes, int64_t) {
      Depths depths;
      find_depths(lanes, weighing, depths);
      if (depths.live_bits == 0) return;
      Eight weight;
      find_weights(depths, weight);
      for (int i = 0; i < kEightVectors; ++i) sum.vector[i] += weight.vector[i];
    });
    sums[begin / kLogitBlock] = sum_of_lanes(sum);
  }
}

template <class Logit>
void fill_buckets(const Logit* row, int64_t n, const Weighing& weighing, double buckets_per_depth,
                  RankBuckets* buckets) {
  __builtin_memset(buckets, 0, sizeof(*buckets));
  constexpr int kLast = kRankBuckets - 1;
  // The last bucket often holds most of the row and has its own sum.
  Eight last_weight{};
  int32_t last_count = 0;
  for_groups(row, n, [&](const Eight& lanes, int64_t) {
    Depths depths;
    find_depths(lanes, weighing, depths);
    if (depths.live_bits == 0) return;
    Eight weight;
    find_weights(depths, weight);
    alignas(64) int32_t bucket[kGroup];
    unsigned before_last = 0;
    for (int i = 0; i < kEightVectors; ++i) {
      const Doubles position = depths.depth.vector[i] * buckets_per_depth;
      const Longs is_before = position < all_lanes(kLast);
      before_last |= lane_bits(is_before) << (i * kDoubleLanes);
      const Doubles bounded = is_before ? position : all_lanes(kLast);
      const DoublesAsInts whole = __builtin_convertvector(bounded, DoublesAsInts);
      __builtin_memcpy(bucket + i * kDoubleLanes, &whole, sizeof(whole));
    }
    if (before_last == 0) {
      for (int i = 0; i < kEightVectors; ++i) last_weight.vector[i] += weight.vector[i];
      last_count += __builtin_popcount(depths.live_bits);
      return;
    }
    double each[kGroup];
    __builtin_memcpy(each, &weight, sizeof(each));
    for (int lane = 0; lane < kGroup; ++lane) {
      buckets->weights[lane & 1][bucket[lane]] += each[lane];
      buckets->counts[lane & 1][bucket[lane]] += static_cast<int32_t>(depths.live_bits >> lane & 1);
    }
  });
  for (int i = 0; i < kRankBuckets; ++i) {
    buckets->weights[0][i] += buckets->weights[1][i];
    buckets->counts[0][i] += buckets->counts[1][i];
  }
  buckets->weights[0][kLast] += sum_of_lanes(last_weight);
  buckets->counts[0][kLast] += last_count;
}

template <class Logit>
int64_t gather(const Logit* row, int64_t n, Logit least, Logit end, double* logits, int32_t* ids) {
  using Vector = typename Lanes<Logit>::Vector;
  constexpr int kLanes = static_cast<int>(sizeof(Vector) / sizeof(Logit));
  int64_t num = 0;
  const auto take_if_within = [&](int64_t id) {
    if (!(row[id] >= least && row[id] < end)) return;
    logits[num] = static_cast<double>(row[id]);
    ids[num] = static_cast<int32_t>(id);
    ++num;
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Vector lanes;
    __builtin_memcpy(&lanes, row + i, sizeof(lanes));
    const Longs is_within = reinterpret_cast<Longs>((lanes >= least) & (lanes < end));
    if (lane_bits(is_within != 0) == 0) continue;
    for (int lane = 0; lane < kLanes; ++lane) take_if_within(i + lane);
  }
  for (; i < n; ++i) take_if_within(i);
  return num;
}

void widen(const float* row, int64_t n, const uint8_t* allowed, double* out) {
  for_groups(row, n, [&](const Eight& lanes, int64_t at) {
    Eight wide = lanes;
    if (allowed != nullptr) {
      const unsigned bits = allowed[at / kGroup];
      for (int i = 0; i < kEightVectors; ++i) {
        Longs lane_bit{};
        for (int lane = 0; lane < kDoubleLanes; ++lane)
          lane_bit[lane] = int64_t{1} << (i * kDoubleLanes + lane);
        const Longs is_allowed = ((Longs{} + static_cast<int64_t>(bits)) & lane_bit) != 0;
        wide.vector[i] = is_allowed ? wide.vector[i] : all_lanes(-__builtin_inf());
      }
    }
    store_lanes(wide, n - at, out + at);
  });
}

template <class Logit>
constexpr LogitKernels<Logit> logit_kernels() {
  return {find_peaks<Logit>, weigh<Logit>, sum_blocks<Logit>, fill_buckets<Logit>, gather<Logit>};
}

const SamplingKernels& sampling_kernels() {
  static constexpr SamplingKernels kKernels{logit_kernels<float>(), logit_kernels<double>(), widen};
  return kKernels;
}

}  // namespace
}  // namespace ballast
