// The (token, expert) pairs of a call in order of expert, then token.
#pragma once

#include <cstdint>
#include <vector>

#include "base/index_range.h"

namespace ballast {

struct Grouping {
  struct Group {
    int64_t expert;
    IndexRange members;
  };
  std::vector<Group> groups;    // one a chosen expert, ascending
  std::vector<int64_t> tokens;  // [members of all groups]
  std::vector<float> weights;   // [members of all groups]

  int64_t num_members() const { return static_cast<int64_t>(tokens.size()); }
};

// The id of a pair that is skipped because another device computes it.
constexpr int32_t kNoExpert = -1;

// ids, weights [T, k]. Throws std::out_of_range for an id that is neither an expert nor kNoExpert.
Grouping group_by_expert(const int32_t* ids, const float* weights, int64_t num_tokens, int64_t num_chosen,
                         int64_t num_experts);

}  // namespace ballast
