#include "moe/router.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/check.h"
#include "ops/pointwise.h"

namespace ballast {
namespace {

void softmax(const float* logits, int64_t num, float* scores) {
  const float maximum = *std::max_element(logits, logits + num);
  float sum = 0.0f;
  for (int64_t i = 0; i < num; ++i) {
    scores[i] = std::exp(logits[i] - maximum);
    sum += scores[i];
  }
  for (int64_t i = 0; i < num; ++i) scores[i] /= sum;
}

void sigmoids(const float* logits, int64_t num, float* scores) {
  std::transform(logits, logits + num, scores, sigmoid);
}

void sqrt_softplus(const float* logits, int64_t num, float* scores) {
  for (int64_t i = 0; i < num; ++i) {
    scores[i] = std::sqrt(std::max(logits[i], 0.0f) + std::log1p(std::exp(-std::abs(logits[i]))));
  }
}

void score(Gating gating, const float* logits, int64_t num, float* scores) {
  switch (gating) {
    case Gating::kSoftmax:
      return softmax(logits, num, scores);
    case Gating::kSigmoid:
      return sigmoids(logits, num, scores);
    case Gating::kSqrtSoftplus:
      return sqrt_softplus(logits, num, scores);
  }
}

// One token's weights, from all scores.
void weigh_chosen(const float* scores, const RoutingRule& rule, const int32_t* ids, float* weights) {
  float sum = 0.0f;
  for (int64_t k = 0; k < rule.num_chosen; ++k) {
    weights[k] = scores[ids[k]];
    sum += weights[k];
  }
  // The tiny addend keeps a row of vanishing scores finite.
  const float divisor = rule.normalize ? sum + 1e-20f : 1.0f;
  for (int64_t k = 0; k < rule.num_chosen; ++k) weights[k] = weights[k] / divisor * rule.scale;
}

// Index of the largest value that is still free; the lowest such index. Takes it. With NaN among the values
// the choice is arbitrary but still free.
int64_t take_largest(const float* values, std::vector<uint8_t>& is_free) {
  int64_t best = -1;
  for (int64_t i = 0; i < static_cast<int64_t>(is_free.size()); ++i) {
    if (is_free[static_cast<size_t>(i)] && (best < 0 || values[i] > values[best])) best = i;
  }
  BALLAST_CHECK(best >= 0);
  is_free[static_cast<size_t>(best)] = 0;
  return best;
}

float group_score(const float* scores, int64_t size, bool top2) {
  std::vector<uint8_t> is_free(static_cast<size_t>(size), 1);
  const float best = scores[take_largest(scores, is_free)];
  return top2 ? best + scores[take_largest(scores, is_free)] : best;
}

// 1 for each expert of the groups used.
std::vector<uint8_t> allowed_experts(const float* scores, const RoutingRule& rule) {
  if (rule.num_groups_used == rule.num_groups)
    return std::vector<uint8_t>(static_cast<size_t>(rule.num_experts), 1);
  const int64_t group_size = rule.num_experts / rule.num_groups;
  std::vector<float> group_scores(static_cast<size_t>(rule.num_groups));
  for (int64_t group = 0; group < rule.num_groups; ++group) {
    group_scores[static_cast<size_t>(group)] =
        group_score(scores + group * group_size, group_size, rule.group_score_top2);
  }
  std::vector<uint8_t> is_free(static_cast<size_t>(rule.num_groups), 1);
  std::vector<uint8_t> allowed(static_cast<size_t>(rule.num_experts), 0);
  for (int64_t i = 0; i < rule.num_groups_used; ++i) {
    const int64_t group = take_largest(group_scores.data(), is_free);
    std::fill_n(allowed.begin() + group * group_size, group_size, uint8_t{1});
  }
  return allowed;
}

}  // namespace

void RoutingRule::check() const {
  const auto require = [](bool holds, const char* name, int64_t value, const std::string& expected) {
    if (!holds)
      throw std::invalid_argument(std::string(name) + " is " + std::to_string(value) + "; expected " +
                                  expected);
  };
  require(num_groups >= 1 && num_experts % num_groups == 0, "num_groups", num_groups,
          "a divisor of the number of experts, " + std::to_string(num_experts));
  require(num_groups_used >= 1 && num_groups_used <= num_groups, "num_groups_used", num_groups_used,
          "1 to num_groups, " + std::to_string(num_groups));
  const int64_t group_size = num_experts / num_groups;
  require(num_chosen >= 1 && num_chosen <= num_groups_used * group_size, "experts per token", num_chosen,
          "1 to the number of experts in the groups used, " + std::to_string(num_groups_used * group_size));
  require(!group_score_top2 || num_groups_used == num_groups || group_size >= 2, "num_groups", num_groups,
          "groups of at least 2 experts, because group_score_top2 adds the two best");
}

void route(const float* logits, int64_t num_tokens, const float* bias, const RoutingRule& rule, int32_t* ids,
           float* weights) {
  std::vector<float> scores(static_cast<size_t>(rule.num_experts));
  std::vector<float> biased(static_cast<size_t>(rule.num_experts));
  for (int64_t token = 0; token < num_tokens; ++token) {
    score(rule.gating, logits + token * rule.num_experts, rule.num_experts, scores.data());
    biased = scores;
    if (bias != nullptr) {
      for (size_t e = 0; e < biased.size(); ++e) biased[e] += bias[e];
    }
    std::vector<uint8_t> is_free = allowed_experts(biased.data(), rule);
    int32_t* chosen = ids + token * rule.num_chosen;
    for (int64_t k = 0; k < rule.num_chosen; ++k) {
      chosen[k] = static_cast<int32_t>(take_largest(biased.data(), is_free));
    }
    weigh_chosen(scores.data(), rule, chosen, weights + token * rule.num_chosen);
  }
}

void weigh(const float* logits, int64_t num_tokens, const RoutingRule& rule, const int32_t* ids,
           float* weights) {
  std::vector<float> scores(static_cast<size_t>(rule.num_experts));
  for (int64_t token = 0; token < num_tokens; ++token) {
    score(rule.gating, logits + token * rule.num_experts, rule.num_experts, scores.data());
    weigh_chosen(scores.data(), rule, ids + token * rule.num_chosen, weights + token * rule.num_chosen);
  }
}

}  // namespace ballast
