// The inputs of the down matrix of a call's experts.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/index_range.h"
#include "base/scratch.h"
#include "moe/grouping.h"
#include "ops/activations.h"
#include "quant/panels.h"

namespace ballast {

// Hidden values [members][width], as floats and as down takes them: rounded, and for groups of many members
// arranged in down's own order too, since each of its runs of panels reads them all. Columns that share a
// scale form a span, and the thread that stores the last of them rounds it.
class Hidden {
 public:
  // Both must outlive it.
  Hidden(const Panels& down, const Grouping& all);

  // One a member; for panels that take floats, [width] floats.
  const void* const* rows() const { return rows_.data(); }

  // Whether arranged() supports a group with this number of members.
  bool is_arranged(int64_t num_members) const {
    return order_.fewest_tokens > 0 && num_members >= order_.fewest_tokens;
  }
  // A group's members from the given one on, the first of a bundle.
  ArrangedTokens arranged(int64_t group, int64_t first_member) const;

  // values [members][16], the columns of one panel; those beyond the width are dropped.
  void store(IndexRange members, int64_t panel, const float* values);

  // To be called once the panels are stored for all members of a group.
  void round(int64_t group, IndexRange panels);

 private:
  void reserve_arranged();
  // Of the arranged bundles of a span.
  int64_t span_bytes(int64_t num_members) const;
  void round_span(IndexRange members, IndexRange panels);
  void arrange_span(int64_t group, int64_t span);

  const Panels& down_;
  const Grouping& all_;
  const TokenOrder& order_;
  const int64_t span_panels_;
  const int64_t num_panels_;
  const int64_t num_spans_;
  const int64_t block_lines_;
  const int64_t row_lines_;
  Scratch<float> floats_;
  Scratch<CacheLine> quants_;
  Scratch<uint8_t> arranged_;
  std::vector<int64_t> group_begins_;                   // bytes in arranged_, of [span][bundles]
  std::unique_ptr<std::atomic<int64_t>[]> num_stored_;  // panels of [group][span]
  std::vector<const void*> rows_;
};

}  // namespace ballast
