#include "sched/tiers/fetching.h"

#include <algorithm>

namespace ballast {

size_t num_worth_fetching(const StepPlanner& planner, int32_t block_tokens,
                          const std::vector<FetchSpeed>& tiers, const std::vector<int32_t>& found,
                          int32_t num_tokens, int32_t num_decode,
                          const std::function<size_t(size_t)>& num_usable) {
  if (!planner.costs().are_known()) return found.size();
  double best_s = planner.prompt_seconds(num_tokens, num_decode), fetch_s = 0.0;
  size_t best = 0;
  for (size_t begin = 0, end = 0; begin < found.size(); begin = end) {
    while (end < found.size() && found[end] == found[begin]) ++end;
    const FetchSpeed& tier = tiers[static_cast<size_t>(found[begin])];
    const auto seconds = [&](size_t until) {
      return (tier.num_ahead + static_cast<int32_t>(until - begin)) * tier.block_seconds;
    };
    const size_t usable = num_usable(end);
    if (usable > begin) {
      const double with_state_s = seconds(usable) + tier.blocks_per_state * tier.block_seconds;
      const int32_t num_left = num_tokens - static_cast<int32_t>(usable) * block_tokens;
      const double all_s = std::max(fetch_s, with_state_s) + planner.prompt_seconds(num_left, num_decode);
      if (all_s <= best_s) {
        best_s = all_s;
        best = usable;
      }
    }
    fetch_s = std::max(fetch_s, seconds(end));
  }
  return best;
}

}  // namespace ballast
