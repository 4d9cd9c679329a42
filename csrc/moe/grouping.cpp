#include "moe/grouping.h"

#include <stdexcept>
#include <string>

namespace ballast {

Grouping group_by_expert(const int32_t* ids, const float* weights, int64_t num_tokens, int64_t num_chosen,
                         int64_t num_experts) {
  const int64_t num_assignments = num_tokens * num_chosen;
  std::vector<int64_t> ends(static_cast<size_t>(num_experts), 0);
  for (int64_t i = 0; i < num_assignments; ++i) {
    if (ids[i] == kNoExpert) continue;
    if (ids[i] < 0 || ids[i] >= num_experts) {
      throw std::out_of_range("ids[" + std::to_string(i / num_chosen) + ", " +
                              std::to_string(i % num_chosen) + "] is " + std::to_string(ids[i]) +
                              "; expected 0 to " + std::to_string(num_experts - 1) + ", or -1 for none");
    }
    ++ends[static_cast<size_t>(ids[i])];
  }
  Grouping all;
  int64_t begin = 0;
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    const int64_t size = ends[static_cast<size_t>(expert)];
    if (size > 0) all.groups.push_back({expert, {begin, begin + size}});
    ends[static_cast<size_t>(expert)] = begin;  // from here on the end of what has been placed
    begin += size;
  }
  all.tokens.resize(static_cast<size_t>(begin));
  all.weights.resize(static_cast<size_t>(begin));
  for (int64_t i = 0; i < num_assignments; ++i) {
    if (ids[i] == kNoExpert) continue;
    const size_t index = static_cast<size_t>(ends[static_cast<size_t>(ids[i])]++);
    all.tokens[index] = i / num_chosen;
    all.weights[index] = weights[i];
  }
  return all;
}

}  // namespace ballast
