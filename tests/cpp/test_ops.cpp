// Operations on exact-size heap buffers with odd sizes, so that a sanitizer detects
// any access outside, compared with plain loops in double. tests/kernels has formats, odd
// batches and real model sizes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "base/index_range.h"
#include "check.h"
#include "cpu/dispatch.h"
#include "cpu/halves.h"
#include "moe/experts.h"
#include "moe/router.h"
#include "ops/activations.h"
#include "ops/attention/paged_attention.h"
#include "ops/attention/position_choice.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/pointwise.h"
#include "ops/rope.h"
#include "ops/vector.h"
#include "quant/matrix.h"
#include "threads/thread_pool.h"

using namespace ballast;

namespace {

using Floats = std::vector<float>;

Floats random_floats(int64_t num, unsigned seed) {
  std::mt19937 engine(seed);
  Floats values(static_cast<size_t>(num));
  for (float& value : values) value = static_cast<float>(engine() % 2001) / 1000.0f - 1.0f;
  return values;
}

Matrix f32_matrix(const Floats& values, int64_t rows, int64_t cols) {
  return Matrix(values.data(), static_cast<int64_t>(values.size() * sizeof(float)), 0, rows, cols);
}

bool near(float got, double want) { return std::abs(static_cast<double>(got) - want) < 1e-4; }

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

}  // namespace

TEST(a_dot_product_has_the_same_bits_alone_shared_and_swapped) {
  for (int64_t n : {0, 1, 3, 7, 8, 9, 17, 64, 259}) {
    const Floats a = random_floats(n, 1);
    std::vector<Floats> others;
    const float* pointers[4];
    for (unsigned k = 0; k < 4; ++k) others.push_back(random_floats(n, 2 + k));
    for (size_t k = 0; k < 4; ++k) pointers[k] = others[k].data();
    float together[4];
    dot<4>(a.data(), pointers, n, together);
    for (size_t k = 0; k < 4; ++k) {
      EXPECT(same_bits(together[k], dot(a.data(), others[k].data(), n)));
      EXPECT(same_bits(together[k], dot(others[k].data(), a.data(), n)));
      double want = 0;
      for (size_t i = 0; i < static_cast<size_t>(n); ++i)
        want += static_cast<double>(a[i]) * static_cast<double>(others[k][i]);
      EXPECT(near(together[k], want));
    }
  }
}

TEST(scaled_rows_are_added_in_order_for_any_number) {
  for (int64_t n : {1, 3, 4, 5, 31}) {
    for (int64_t num_rows : {0, 1, 3, 4, 5, 9}) {
      std::vector<Floats> rows;
      std::vector<const float*> pointers;
      for (int64_t r = 0; r < num_rows; ++r) rows.push_back(random_floats(n, static_cast<unsigned>(r)));
      for (const Floats& row : rows) pointers.push_back(row.data());
      const Floats scales = random_floats(num_rows, 77);
      Floats out = random_floats(n, 78);
      Floats want = out;
      for (size_t r = 0; r < rows.size(); ++r) {
        for (size_t i = 0; i < want.size(); ++i) {
          const float product = scales[r] * rows[r][i];
          want[i] += product;
        }
      }
      add_scaled(scales.data(), pointers.data(), num_rows, n, out.data());
      for (size_t i = 0; i < want.size(); ++i) EXPECT(same_bits(out[i], want[i]));
    }
  }
}

TEST(linear_multiplies_every_token_with_every_row) {
  ThreadPool pool(3);
  for (int64_t num_tokens : {0, 1, 3, 4, 5, 17}) {
    for (int64_t rows : {1, 8, 13}) {
      const int64_t cols = 37;
      const Floats weights = random_floats(rows * cols, 5);
      const Floats x = random_floats(num_tokens * cols, 6);
      Floats out(static_cast<size_t>(num_tokens * rows), NAN);
      linear(pool, x.data(), num_tokens, f32_matrix(weights, rows, cols), out.data());
      for (int64_t t = 0; t < num_tokens; ++t) {
        for (int64_t r = 0; r < rows; ++r) {
          double want = 0;
          for (int64_t c = 0; c < cols; ++c) {
            want += static_cast<double>(x[static_cast<size_t>(t * cols + c)]) *
                    static_cast<double>(weights[static_cast<size_t>(r * cols + c)]);
          }
          EXPECT(near(out[static_cast<size_t>(t * rows + r)], want));
        }
      }
    }
  }
}

TEST(head_linear_and_its_transpose_read_each_heads_rows) {
  ThreadPool pool(2);
  const int64_t num_tokens = 5, cols = 515;
  const HeadRows heads{3, 11, 2, 9};
  const Floats weights = random_floats(3 * 11 * cols, 8);
  const Matrix matrix = f32_matrix(weights, 33, cols);
  const auto weight = [&](int64_t h, int64_t n, int64_t c) {
    return static_cast<double>(weights[static_cast<size_t>((h * 11 + 2 + n) * cols + c)]);
  };

  const Floats wide = random_floats(num_tokens * 3 * cols, 9);
  Floats narrow(static_cast<size_t>(num_tokens * 3 * 9), NAN);
  head_linear(pool, wide.data(), num_tokens, matrix, heads, narrow.data());
  const Floats short_rows = random_floats(num_tokens * 3 * 9, 10);
  Floats back(static_cast<size_t>(num_tokens * 3 * cols), NAN);
  head_linear_transposed(pool, short_rows.data(), num_tokens, matrix, heads, back.data());

  for (int64_t th = 0; th < num_tokens * 3; ++th) {
    for (int64_t n = 0; n < 9; ++n) {
      double want = 0;
      for (int64_t c = 0; c < cols; ++c)
        want += weight(th % 3, n, c) * static_cast<double>(wide[static_cast<size_t>(th * cols + c)]);
      EXPECT(near(narrow[static_cast<size_t>(th * 9 + n)], want));
    }
    for (int64_t c = 0; c < cols; ++c) {
      double want = 0;
      for (int64_t n = 0; n < 9; ++n)
        want += weight(th % 3, n, c) * static_cast<double>(short_rows[static_cast<size_t>(th * 9 + n)]);
      EXPECT(near(back[static_cast<size_t>(th * cols + c)], want));
    }
  }
}

TEST(attention_weights_the_rows_of_its_own_sequence_by_softmax) {
  ThreadPool pool(2);
  // Two requests, blocks of 4: the first one at position 37 (blocks 9…0), the
  // second one at 0 and 1 (block 10).
  const int64_t width = 11, value_width = 7, heads = 5;
  const Floats cache = random_floats(11 * 4 * width, 11);
  const Floats query = random_floats(3 * heads * width, 12);
  const std::vector<int32_t> query_indptr{0, 1, 3}, positions{37, 0, 1}, kv_indptr{0, 10, 11};
  const std::vector<int32_t> kv_indices{9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 10};
  const PagedBatch batch{
      2, 3, 44, 11, 4, query_indptr.data(), positions.data(), kv_indptr.data(), kv_indices.data()};
  batch.check();
  Floats out(static_cast<size_t>(3 * heads * value_width), NAN);
  const CacheRows rows{{reinterpret_cast<uint8_t*>(const_cast<float*>(cache.data())), false}, width, 0};
  paged_attention(
      pool, nullptr,
      {{query.data(), width, value_width}, {query.data() + value_width, width, width - value_width}}, rows,
      rows, batch, {heads, 1, width, value_width, 0.5f}, out.data());

  for (int64_t th = 0; th < 3 * heads; ++th) {
    const int64_t token = th / heads;
    double sum = 0;
    std::vector<double> values(static_cast<size_t>(value_width), 0);
    for (int64_t p = 0; p <= positions[static_cast<size_t>(token)]; ++p) {
      const int64_t block = kv_indices[static_cast<size_t>((token == 0 ? 0 : 10) + p / 4)];
      const float* row = cache.data() + (block * 4 + p % 4) * width;
      double score = 0;
      for (int64_t i = 0; i < width; ++i)
        score +=
            static_cast<double>(query[static_cast<size_t>(th * width + i)]) * static_cast<double>(row[i]);
      const double weight = std::exp(0.5 * score);
      sum += weight;
      for (int64_t i = 0; i < value_width; ++i)
        values[static_cast<size_t>(i)] += weight * static_cast<double>(row[i]);
    }
    for (int64_t i = 0; i < value_width; ++i) {
      EXPECT(near(out[static_cast<size_t>(th * value_width + i)], values[static_cast<size_t>(i)] / sum));
    }
  }
}

TEST(a_cache_rounds_to_the_nearest_half_within_its_range) {
  Floats numbers;
  for (uint32_t half = 0; half < 0x7c00u; ++half) {
    const auto value = [](uint32_t bits) {
      return F16{{static_cast<uint8_t>(bits & 255u), static_cast<uint8_t>(bits >> 8)}}.to_float();
    };
    const float low = value(half);
    numbers.push_back(half % 2 == 0 ? low : -low);
    if (half == 0x7bffu) break;
    const float middle = 0.5f * (low + value(half + 1));
    numbers.insert(numbers.end(), {middle, -std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)});
  }
  numbers.insert(numbers.end(), {65519.0f, 65520.0f, -1e9f, INFINITY, -INFINITY, NAN, 1e-40f, -0.0f});
  for (const std::string& isa : usable_isas()) {
    std::vector<F16> halves(numbers.size());
    attention_kernels(find_isa(isa))
        .narrow(numbers.data(), static_cast<int64_t>(numbers.size()), halves.data());
    for (size_t i = 0; i < numbers.size(); ++i) {
      const float wanted = std::min(std::max(numbers[i], -65504.0f), 65504.0f);
      const float found = halves[i].to_float();
      if (numbers[i] != numbers[i]) {
        EXPECT(found != found);
        continue;
      }
      // A half of `bits` and its neighbours: none is nearer, and of two as near it is the even one.
      const int bits = halves[i].bytes[0] | (halves[i].bytes[1] & 0x7f) << 8;
      EXPECT((halves[i].bytes[1] >= 0x80) == std::signbit(numbers[i]));
      for (const int other : {std::max(bits - 1, 0), std::min(bits + 1, 0x7bff)}) {
        const F16 next{{static_cast<uint8_t>(other & 255), static_cast<uint8_t>(other >> 8)}};
        const float error = std::fabs(std::fabs(wanted) - std::fabs(found));
        const float its_error = std::fabs(std::fabs(wanted) - next.to_float());
        EXPECT(other == bits || error < its_error || (error == its_error && bits % 2 == 0));
      }
    }
  }
}

TEST(a_cache_widens_all_halves_exactly_and_writes_whole_vectors_at_most) {
  std::vector<F16> halves;
  for (uint32_t bits = 0; bits < 0x10000u; ++bits)
    halves.push_back({{static_cast<uint8_t>(bits & 255u), static_cast<uint8_t>(bits >> 8)}});
  const size_t padded = halves.size(), n = padded - 3;
  for (const std::string& isa : usable_isas()) {
    Floats floats(padded + kAttentionRows, -1.0f);
    attention_kernels(find_isa(isa)).widen(halves.data(), static_cast<int64_t>(n), floats.data());
    for (size_t i = 0; i < n; ++i) {
      const float wanted = halves[i].to_float();
      EXPECT(wanted != wanted ? floats[i] != floats[i]
                              : floats[i] == wanted && std::signbit(floats[i]) == std::signbit(wanted));
    }
    for (size_t i = n; i < padded; ++i) EXPECT(floats[i] == 0.0f || floats[i] == -1.0f);
    for (size_t i = padded; i < floats.size(); ++i) EXPECT(floats[i] == -1.0f);
  }
}

TEST(the_highest_scores_are_chosen_with_ties_by_position) {
  const auto chosen = [](const Floats& scores, int64_t k) {
    std::vector<int32_t> positions(static_cast<size_t>(std::min(k, static_cast<int64_t>(scores.size()))), -1);
    EXPECT_EQ(choose_top(scores.data(), static_cast<int64_t>(scores.size()), k, positions.data()),
              static_cast<int64_t>(positions.size()));
    return positions;
  };
  using Positions = std::vector<int32_t>;
  EXPECT(chosen({1, 3, 2, 3, 3}, 2) == (Positions{1, 3}));
  EXPECT(chosen({0.0f, -0.0f, 0.0f, -1.0f}, 2) == (Positions{0, 1}));
  EXPECT(chosen({-2, -1, -3, -1e-40f}, 2) == (Positions{1, 3}));
  EXPECT(chosen({1, NAN, INFINITY, -INFINITY, -NAN}, 3) == (Positions{1, 2, 4}));
  EXPECT(chosen({1, 2}, 2) == (Positions{0, 1}));
  EXPECT(chosen({1, 2}, 5) == (Positions{0, 1}));
  EXPECT(chosen({}, 5).empty());
  for (int64_t size : {7, 100, 5000}) {
    const Floats scores = random_floats(size, 31);  // many of them are equal
    for (int64_t k : {int64_t{1}, size / 3, size - 1}) {
      std::vector<int32_t> order(static_cast<size_t>(size));
      for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
      });
      order.resize(static_cast<size_t>(k));
      std::sort(order.begin(), order.end());
      EXPECT(chosen(scores, k) == order);
    }
  }
}

TEST(a_batch_that_would_read_outside_the_cache_is_refused) {
  const std::vector<int32_t> query_indptr{0, 1}, positions{7}, kv_indptr{0, 2}, kv_indices{0, 2};
  PagedBatch batch{
      1, 1, 12, 2, 4, query_indptr.data(), positions.data(), kv_indptr.data(), kv_indices.data()};
  batch.check();
  batch.num_slots = 11;  // block 2 is incomplete
  EXPECT_THROWS(batch.check(), std::invalid_argument);
  batch.num_slots = 12;
  const std::vector<int32_t> too_far{8};
  batch.positions = too_far.data();
  EXPECT_THROWS(batch.check(), std::invalid_argument);
}

TEST(norm_rope_and_silu_follow_their_formulas) {
  const Floats x{3, 4};
  const Floats weight{1, 2};
  Floats out(2);
  rms_norm(x.data(), 1, 2, weight.data(), 0.0f, out.data());
  EXPECT(near(out[0], 3 / std::sqrt(12.5)));
  EXPECT(near(out[1], 8 / std::sqrt(12.5)));

  Floats pair{1, 2, 3, 4};  // one token, one head, two pairs: a quarter rotation and none
  const Floats cosines{0, 1}, sines{1, 0};
  rope_interleaved(pair.data(), 1, 1, 4, cosines.data(), sines.data());
  EXPECT(pair == (Floats{-2, 1, 3, 4}));

  const Floats gate{0, 1, -100};
  const Floats up{5, 2, 3};
  Floats product(3);
  silu_mul(gate.data(), up.data(), 3, product.data());
  EXPECT_EQ(product[0], 0.0f);
  EXPECT(near(product[1], 2 / (1 + std::exp(-1.0))));
  EXPECT(near(product[2], 0));
}

TEST(routing_keeps_to_the_best_groups_and_breaks_ties_downwards) {
  RoutingRule rule{6, 3, 3, 2, Gating::kSigmoid, true, true, 2.0f};
  rule.check();
  const Floats logits{0,  0, 2,
                      -5, 1, 1};  // the best expert is in the worst group; sums of two: 1.0, 0.89, 1.46
  std::vector<int32_t> ids(3);
  Floats weights(3);
  route(logits.data(), 1, nullptr, rule, ids.data(), weights.data());
  EXPECT(ids == (std::vector<int32_t>{4, 5, 0}));
  EXPECT(near(weights[0] + weights[1] + weights[2], 2.0));
  rule.num_groups = 4;
  EXPECT_THROWS(rule.check(), std::invalid_argument);
}

TEST(experts_add_each_tokens_weighted_outputs) {
  ThreadPool pool(3);
  const int64_t num_experts = 3, width = 9, hidden = 13, num_tokens = 6;
  const Floats gate = random_floats(num_experts * width * hidden, 20);
  const Floats up = random_floats(num_experts * width * hidden, 21);
  const Floats down = random_floats(num_experts * hidden * width, 22);
  const Experts experts(f32_matrix(gate, num_experts * width, hidden),
                        f32_matrix(up, num_experts * width, hidden),
                        f32_matrix(down, num_experts * hidden, width), num_experts);
  const Floats x = random_floats(num_tokens * hidden, 23);
  const std::vector<int32_t> ids{2, 0, 0, 2, 1, 0, 2, 1, 2, 0, 0, 1};
  const Floats weights = random_floats(num_tokens * 2, 24);
  Floats out(static_cast<size_t>(num_tokens * hidden), NAN);
  experts.forward(pool, x.data(), num_tokens, ids.data(), weights.data(), 2, out.data());
  experts.forward(pool, x.data(), 0, ids.data(), weights.data(), 2, out.data());

  const auto product = [](const Floats& matrix, int64_t row, int64_t cols, const auto& vector) {
    double sum = 0;
    for (int64_t c = 0; c < cols; ++c)
      sum += static_cast<double>(matrix[static_cast<size_t>(row * cols + c)]) * vector(c);
    return sum;
  };
  for (int64_t t = 0; t < num_tokens; ++t) {
    const auto input = [&](int64_t c) { return static_cast<double>(x[static_cast<size_t>(t * hidden + c)]); };
    std::vector<double> want(static_cast<size_t>(hidden), 0);
    for (int64_t k = 0; k < 2; ++k) {
      const int64_t expert = ids[static_cast<size_t>(t * 2 + k)];
      std::vector<double> activation;
      for (int64_t i = 0; i < width; ++i) {
        const double g = product(gate, expert * width + i, hidden, input);
        activation.push_back(g / (1 + std::exp(-g)) * product(up, expert * width + i, hidden, input));
      }
      const auto activated = [&](int64_t c) { return activation[static_cast<size_t>(c)]; };
      for (int64_t d = 0; d < hidden; ++d) {
        want[static_cast<size_t>(d)] += static_cast<double>(weights[static_cast<size_t>(t * 2 + k)]) *
                                        product(down, expert * hidden + d, width, activated);
      }
    }
    for (int64_t d = 0; d < hidden; ++d)
      EXPECT(near(out[static_cast<size_t>(t * hidden + d)], want[static_cast<size_t>(d)]));
  }

  const std::vector<int32_t> unknown_expert{3, 0};
  EXPECT_THROWS(experts.forward(pool, x.data(), 1, unknown_expert.data(), weights.data(), 2, out.data()),
                std::out_of_range);
  EXPECT_THROWS(Experts(f32_matrix(gate, 27, 13), f32_matrix(up, 27, 13), f32_matrix(gate, 27, 13), 3),
                std::invalid_argument);
}

namespace {

// Panels computed by the busiest of equally fast threads for one token, divided by an even share. Each thread
// takes the next task as soon as it is free.
double longest_share(int64_t num_panels, int64_t num_groups, int num_threads) {
  const Chunks runs(num_panels, panels_per_task(num_panels, num_groups, 1, num_threads));
  std::vector<int64_t> done(static_cast<size_t>(num_threads), 0);
  for (int64_t group = 0; group < num_groups; ++group) {
    for (int64_t run = 0; run < runs.count(); ++run)
      *std::min_element(done.begin(), done.end()) += runs[run].size();
  }
  const double even = static_cast<double>(num_panels * num_groups) / num_threads;
  return static_cast<double>(*std::max_element(done.begin(), done.end())) / even;
}

}  // namespace

TEST(threads_finish_one_tokens_panels_together) {
  struct Case {
    int64_t num_panels, num_groups;
  };
  // Gate and up, then down: V2-Lite's experts, then R1's.
  for (const Case shape : {Case{44, 6}, Case{128, 1}, Case{64, 8}, Case{448, 1}}) {
    EXPECT(longest_share(shape.num_panels, shape.num_groups, 2) < 1.01);
    EXPECT(longest_share(shape.num_panels, shape.num_groups, 12) < 1.04);
    EXPECT(longest_share(shape.num_panels, shape.num_groups, 16) < 1.10);
    EXPECT(longest_share(shape.num_panels, shape.num_groups, 32) < 1.10);
  }
}

TEST(tasks_are_not_empty_and_within_the_prefetch_limit) {
  for (int64_t num_tokens : {1, 16, 17, 4096}) {
    for (int64_t num_panels : {1, 2, 7, 1000}) {
      for (int64_t num_groups : {0, 1, 5, 256}) {
        for (int num_threads : {1, 3, 64}) {
          const int64_t length = panels_per_task(num_panels, num_groups, num_tokens, num_threads);
          EXPECT(length >= 1 && length <= (num_tokens <= 16 ? 16 : 32));
        }
      }
    }
  }
}
