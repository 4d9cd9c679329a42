// Chooses the experts of each token, and their weights.
#pragma once

#include <cstdint>

namespace ballast {

// How logits become scores.
enum class Gating { kSoftmax, kSigmoid, kSqrtSoftplus };

struct RoutingRule {
  int64_t num_experts;
  int64_t num_chosen;       // experts per token
  int64_t num_groups;       // of equal size, neighbours; 1 means no groups
  int64_t num_groups_used;  // groups whose experts may be chosen
  Gating gating;
  bool group_score_top2;  // a group counts as the sum of its two best; its best one otherwise
  bool normalize;         // weights are divided by their sum
  float scale;            // and multiplied with this

  // Throws std::invalid_argument with the field if the numbers are inconsistent.
  void check() const;
};

// logits [T, num_experts]; bias [num_experts] or null, added for the choice only; ids, weights [T,
// num_chosen] in descending order of the biased score, ties by lower id. `rule` has passed its check.
void route(const float* logits, int64_t num_tokens, const float* bias, const RoutingRule& rule, int32_t* ids,
           float* weights);

// The weights of experts that were chosen otherwise, ids [T, num_chosen].
void weigh(const float* logits, int64_t num_tokens, const RoutingRule& rule, const int32_t* ids,
           float* weights);

}  // namespace ballast
