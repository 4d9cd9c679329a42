// Sampling on exact-size heap buffers with odd sizes, so that a sanitizer detects any access outside; ranks
// compared with a plain sort. tests/bindings compares tokens with NumPy, and all instruction sets.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "cpu/sampling.h"
#include "sampling/choice.h"
#include "sampling/logprobs.h"
#include "sampling/philox.h"
#include "sampling/ranking.h"
#include "sampling/rows.h"
#include "sampling/sequence_sampler.h"
#include "sampling/slices.h"
#include "threads/thread_pool.h"

using namespace ballast;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const int64_t kSizes[] = {1, 2, 7, 8, 9, 511, 512, 513, 1500};

enum class Shape { kSpread, kTied, kClose, kMasked };

std::vector<float> random_row(int64_t n, Shape shape, unsigned seed) {
  std::mt19937 engine(seed);
  std::vector<float> row(static_cast<size_t>(n));
  for (float& logit : row) {
    const float uniform = static_cast<float>(engine() % 100001) / 10000.0f;
    switch (shape) {
      case Shape::kSpread:
        logit = uniform;
        break;
      case Shape::kTied:
        logit = std::floor(uniform / 4.0f);
        break;
      case Shape::kClose:
        logit = 1.0f + uniform * 1e-6f;
        break;
      case Shape::kMasked:
        logit = engine() % 8 == 0 ? uniform : -kInfinity;
        break;
    }
  }
  row[engine() % row.size()] = 5.0f;
  return row;
}

SamplingParams plain_params() { return {{1.0, 0, 1.0, 0.0}, 0.0, 0.0, 1.0, 0, {}, {}, 1}; }

}  // namespace

TEST(random_numbers_match_numpys_philox) {
  // numpy.random.Generator(numpy.random.Philox(key=seed, counter=position)).random()
  EXPECT_EQ(philox_uniform(0, 0), 0.011546754286331562);
  EXPECT_EQ(philox_uniform(1, 2), 0.4082618259872465);
  EXPECT_EQ(philox_uniform(~uint64_t{0}, 1234567), 0.3632527101332105);
}

TEST(a_token_by_rank_matches_a_full_sort) {
  const SamplingKernels& kernels = reference_sampling();
  for (const int64_t n : kSizes) {
    for (const Shape shape : {Shape::kSpread, Shape::kTied, Shape::kClose, Shape::kMasked}) {
      const std::vector<float> row = random_row(n, shape, static_cast<unsigned>(n));
      std::vector<float> block_peaks(static_cast<size_t>((n + kLogitBlock - 1) / kLogitBlock));
      const Peaks peaks = kernels.floats.peaks(row.data(), n, block_peaks.data());
      EXPECT_EQ(peaks.highest, static_cast<double>(*std::max_element(row.begin(), row.end())));
      EXPECT_EQ(peaks.lowest, static_cast<double>(*std::min_element(row.begin(), row.end())));
      std::vector<int32_t> order;
      for (int32_t id = 0; id < n; ++id) {
        if (row[static_cast<size_t>(id)] > -kInfinity) order.push_back(id);
      }
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)];
      });
      const Weighing weighing{peaks.highest, 1.4426950408889634, kDeepest};
      const auto num = static_cast<int64_t>(order.size());
      const int64_t num_slices = RowSlices(n, nullptr).count();
      // A range that is much too wide puts all logits into one bucket; one that is too narrow puts the rest
      // into the last one.
      for (const double range : {kDeepest, 1e6, 0.01, 0.0}) {
        const Ranking<float> ranking(kernels, kernels.floats, row.data(), n, block_peaks.data(), weighing,
                                     range);
        for (int64_t slice = 0; slice < num_slices; ++slice) ranking.fill(slice);
        ranking.merge();
        EXPECT_EQ(ranking.all().count, num);
        double before = 0.0;
        for (int64_t rank = 0; rank < num; rank += 1 + num / 7) {
          const int32_t token = order[static_cast<size_t>(rank)];
          const RankedToken found = ranking.find(PrefixGoal::count(rank + 1));
          EXPECT_EQ(found.token, token);
          EXPECT_EQ(found.through.count, rank + 1);
          before = 0.0;
          for (int64_t i = 0; i < rank; ++i) {
            before += std::exp(static_cast<double>(row[static_cast<size_t>(order[static_cast<size_t>(i)])]) -
                               peaks.highest);
          }
          const double own = std::exp(static_cast<double>(row[static_cast<size_t>(token)]) - peaks.highest);
          EXPECT(std::abs(found.through.weight - before - own) < 1e-9);
          EXPECT_EQ(ranking.find(PrefixGoal::more_than(before + 0.5 * own)).token, token);
          EXPECT_EQ(ranking.find(PrefixGoal::weight(before + 0.5 * own)).token, token);
        }
        EXPECT_EQ(ranking.find(PrefixGoal::more_than(1e9)).token, order.back());
      }
    }
  }
}

TEST(rows_divided_among_threads_give_the_same_bits_alone_and_together) {
  const SamplingKernels& kernels = reference_sampling();
  ThreadPool pool(3), alone(1);
  const int64_t n = 3 * kSliceLogits + 517;
  std::vector<std::vector<float>> logits;
  for (const Shape shape : {Shape::kSpread, Shape::kTied, Shape::kClose, Shape::kMasked}) {
    logits.push_back(random_row(n, shape, 12));
  }
  // Greedy, by id, by rank, few by rank, and adjusted: all kinds of rows that a step can have. Each kind is
  // repeated, so that there are more rows than kRowsAtOnce.
  std::vector<SamplingParams> params(5, plain_params());
  params[0].selection = {0.0, 0, 1.0, 0.0};
  params[2].selection = {0.6, 0, 0.95, 0.0};
  params[3].selection = {1.0, 20, 1.0, 0.0};
  params[4].selection = {0.7, 0, 0.9, 0.01};
  params[4].presence_penalty = 0.5;
  std::vector<uint8_t> allowed(static_cast<size_t>(n + 7) / 8, 0x55);
  const auto sampled = [&](ThreadPool& threads, bool together) {
    std::vector<SequenceSampler> samplers;
    for (uint64_t seed = 0; seed < 40; ++seed) {
      samplers.emplace_back(params[seed % params.size()], std::vector<int32_t>{});
    }
    std::vector<int32_t> tokens;
    for (int step = 0; step < 2; ++step) {
      std::vector<SampledRow> rows;
      for (size_t i = 0; i < samplers.size(); ++i) {
        rows.push_back(
            {&samplers[i], logits[i % logits.size()].data(), i % 7 == 0 ? allowed.data() : nullptr, {}});
        if (together && i + 1 < samplers.size()) continue;
        sample_rows(threads, kernels, n, rows);
        for (const SampledRow& row : rows) tokens.push_back(row.choice.token);
        rows.clear();
      }
    }
    return tokens;
  };
  const std::vector<int32_t> want = sampled(alone, false);
  EXPECT(sampled(pool, true) == want);
  EXPECT(sampled(pool, false) == want);
  EXPECT(sampled(alone, true) == want);
}

TEST(a_row_divided_among_threads_gives_the_same_bits) {
  const SamplingKernels& kernels = reference_sampling();
  ThreadPool pool(3);
  const int64_t n = 3 * kSliceLogits + 517;
  for (const Shape shape : {Shape::kSpread, Shape::kTied, Shape::kClose, Shape::kMasked}) {
    const std::vector<float> row = random_row(n, shape, 11);
    for (const Selection& selection : {Selection{0.8, 0, 1.0, 0.0}, Selection{0.6, 0, 0.95, 0.0},
                                       Selection{2.0, 2000, 0.9, 0.01}, Selection{0.3, 0, 0.5, 0.2}}) {
      EXPECT(is_worth_dividing(selection, n));
      for (const double uniform : {0.0, 0.3, 0.999}) {
        RowChoice<float> divided(kernels, kernels.floats, row.data(), n, selection, uniform);
        pool.parallel_for(divided.num_slices(), [&](int64_t slice) { divided.find_peaks(slice); });
        EXPECT(divided.begin());
        pool.parallel_for(divided.num_slices(), [&](int64_t slice) { divided.weigh(slice); });
        EXPECT_EQ(divided.finish().token,
                  choose(kernels, kernels.floats, row.data(), n, selection, uniform).token);
      }
    }
    const auto logprob = [&](ThreadPool* threads) {
      return find_logprobs(kernels, row.data(), n, 7, 0, nullptr, nullptr, threads).logprob;
    };
    EXPECT_EQ(logprob(&pool), logprob(nullptr));
  }
}

TEST(weights_are_accurate_powers_of_two_and_sums_are_per_block) {
  const SamplingKernels& kernels = reference_sampling();
  for (const int64_t n : kSizes) {
    const std::vector<float> row = random_row(n, Shape::kSpread, 5);
    const Weighing weighing{20.0, 5.0, kDeepest};
    std::vector<double> weights(row.size());
    kernels.floats.weigh(row.data(), n, weighing, weights.data());
    std::vector<double> sums(static_cast<size_t>((n + kLogitBlock - 1) / kLogitBlock));
    kernels.floats.sum_blocks(row.data(), n, weighing, sums.data());
    for (size_t i = 0; i < row.size(); ++i) {
      const double depth = (20.0 - static_cast<double>(row[i])) * 5.0;
      const double want = depth <= kDeepest ? std::exp2(-depth) : 0.0;
      EXPECT(std::abs(weights[i] - want) <= 2e-14 * want);
      sums[i / kLogitBlock] -= weights[i];
    }
    for (const double left : sums) EXPECT(std::abs(left) < 1e-15);
  }
}

TEST(a_row_without_a_finite_peak_reports_the_token) {
  const SamplingKernels& kernels = reference_sampling();
  const Selection selection{1.0, 0, 0.9, 0.0};
  for (const int64_t n : kSizes) {
    std::vector<float> row(static_cast<size_t>(n), -kInfinity);
    const auto chosen = [&] { return choose(kernels, kernels.floats, row.data(), n, selection, 0.5); };
    EXPECT_EQ(chosen().token, 0);
    EXPECT_EQ(chosen().highest, -static_cast<double>(kInfinity));
    const auto last = static_cast<int32_t>(n - 1);
    row.back() = kInfinity;
    EXPECT_EQ(chosen().token, last);
    EXPECT_EQ(chosen().highest, static_cast<double>(kInfinity));
    row.back() = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(chosen().token, last);
    EXPECT(std::isnan(chosen().highest));
  }
}

TEST(the_most_likely_tokens_come_in_order_with_ties_by_id) {
  const SamplingKernels& kernels = reference_sampling();
  for (const int64_t n : kSizes) {
    for (const Shape shape : {Shape::kSpread, Shape::kTied, Shape::kMasked}) {
      const std::vector<float> row = random_row(n, shape, 9);
      std::vector<int32_t> order(row.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)];
      });
      for (const int64_t num_top : {int64_t{0}, int64_t{1}, std::min<int64_t>(n, 20), n}) {
        std::vector<int32_t> tokens(static_cast<size_t>(num_top));
        std::vector<double> logprobs(static_cast<size_t>(num_top));
        const LogProbability found =
            find_logprobs(kernels, row.data(), n, order[0], num_top, tokens.data(), logprobs.data(), nullptr);
        EXPECT(std::equal(tokens.begin(), tokens.end(), order.begin()));
        if (num_top == n) {
          double sum = 0.0;
          for (const double logprob : logprobs) sum += std::exp(logprob);
          EXPECT(std::abs(sum - 1.0) < 1e-12);
          EXPECT_EQ(found.logprob, logprobs[0]);
        }
      }
    }
  }
}

TEST(masks_have_one_bit_per_token_and_stop_tokens_may_be_out_of_range) {
  const SamplingKernels& kernels = reference_sampling();
  for (const int64_t n : kSizes) {
    SamplingParams params = plain_params();
    params.selection.temperature = 0.0;
    params.presence_penalty = 1.0;
    params.repetition_penalty = 1.5;
    params.min_tokens = 1;
    params.stop_tokens = {0, static_cast<int32_t>(n), 100000};
    ThreadPool pool(1);
    SequenceSampler sampler(params, {0, static_cast<int32_t>(n - 1), static_cast<int32_t>(n), 100000});
    const std::vector<float> row(static_cast<size_t>(n), 1.0f);
    std::vector<uint8_t> allowed(static_cast<size_t>((n + 7) / 8), 0);
    allowed[static_cast<size_t>((n - 1) / 8)] |= static_cast<uint8_t>(1u << (n - 1) % 8);
    const auto next = [&](const uint8_t* mask) {
      std::vector<SampledRow> rows{{&sampler, row.data(), mask, {}}};
      sample_rows(pool, kernels, n, rows);
      return rows[0].choice.token;
    };
    EXPECT_EQ(next(allowed.data()), static_cast<int32_t>(n - 1));
    // The previous token and those of the prompt have become less likely.
    EXPECT_EQ(next(nullptr), n > 2 ? 1 : 0);
  }
}

TEST(a_bias_outside_the_vocabulary_is_refused) {
  SamplingParams params = plain_params();
  params.biases = {{5, 1.0}};
  SequenceSampler sampler(params, {});
  const std::vector<float> row(5, 1.0f);
  ThreadPool pool(1);
  std::vector<SampledRow> rows{{&sampler, row.data(), nullptr, {}}};
  EXPECT_THROWS(sample_rows(pool, reference_sampling(), 5, rows), std::out_of_range);
}
