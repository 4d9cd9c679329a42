// Chooses the experts of each token, and their weights.
#pragma once

#include <cstdint>

namespace ballast {

struct RoutingRule {
  int64_t num_experts;
  int64_t num_chosen;       // experts per token
  int64_t num_groups;       // of equal size, neighbours; 1 means no groups
  int64_t num_groups_used;  // groups whose experts may be chosen
  bool sigmoid;             // scores are sigmoid(logit); softmax over the experts otherwise
  bool group_score_top2;    // a group counts as the sum of its two best; its best one otherwise
  bool normalize;           // weights are divided by their sum
  float scale;              // and multiplied with this

  // Throws std::invalid_argument with the field if the numbers are inconsistent.
  void check() const;
};

// logits [T, num_experts]; bias [num_experts] or null, added for the choice only; ids, weights [T,
// num_chosen] in descending order of the biased score, ties by lower id. `rule` has passed its check.
void route(const float* logits, int64_t num_tokens, const float* bias, const RoutingRule& rule, int32_t* ids,
           float* weights);

}  // namespace ballast
