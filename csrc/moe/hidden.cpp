#include "moe/hidden.h"

#include <algorithm>

#include "base/check.h"
#include "ops/tile.h"

namespace ballast {

Hidden::Hidden(const Panels& down, const Grouping& all)
    : down_(down),
      all_(all),
      order_(down.token_order()),
      span_panels_(down.blocks_per_scale() * kGroupCols / kPanelRows),
      num_panels_(Chunks(down.cols(), kPanelRows).count()),
      num_spans_(Chunks(num_panels_, span_panels_).count()),
      block_lines_(down.activation_kernels().block_bytes / int64_t{sizeof(CacheLine)}),
      row_lines_(down.takes_quantized() ? down.cols() / kGroupCols * block_lines_ : 0),
      floats_(all.num_members() * down.cols()),
      quants_(all.num_members() * row_lines_),
      num_stored_(
          std::make_unique<std::atomic<int64_t>[]>(all.groups.size() * static_cast<size_t>(num_spans_))) {
  rows_.reserve(static_cast<size_t>(all.num_members()));
  for (int64_t member = 0; member < all.num_members(); ++member) {
    rows_.push_back(down.takes_quantized() ? static_cast<const void*>(quants_.get() + member * row_lines_)
                                           : static_cast<const void*>(floats_.get() + member * down.cols()));
  }
  if (order_.fewest_tokens > 0) reserve_arranged();
}

void Hidden::reserve_arranged() {
  BALLAST_CHECK(order_.bundle_cols == span_panels_ * kPanelRows);
  int64_t num_bytes = 0;
  for (const Grouping::Group& group : all_.groups) {
    group_begins_.push_back(num_bytes);
    num_bytes += num_spans_ * span_bytes(group.members.size());
  }
  arranged_ = Scratch<uint8_t>(num_bytes);
}

int64_t Hidden::span_bytes(int64_t num_members) const {
  if (!is_arranged(num_members)) return 0;
  return Chunks(num_members, order_.bundle_tokens).count() * order_.bundle_bytes;
}

ArrangedTokens Hidden::arranged(int64_t group, int64_t first_member) const {
  BALLAST_CHECK(first_member % order_.bundle_tokens == 0);
  const size_t index = static_cast<size_t>(group);
  return {arranged_.get() + group_begins_[index] + first_member / order_.bundle_tokens * order_.bundle_bytes,
          span_bytes(all_.groups[index].members.size())};
}

void Hidden::store(IndexRange members, int64_t panel, const float* values) {
  const int64_t col = panel * kPanelRows;
  const int64_t num_cols = std::min<int64_t>(kPanelRows, down_.cols() - col);
  float* to = floats_.get() + members.begin * down_.cols() + col;
  for (int64_t i = 0; i < members.size(); ++i, values += kPanelRows, to += down_.cols())
    copy_products(values, num_cols, to);
}

void Hidden::round(int64_t group, IndexRange panels) {
  if (!down_.takes_quantized()) return;
  const IndexRange members = all_.groups[static_cast<size_t>(group)].members;
  for (int64_t span = panels.begin / span_panels_; span * span_panels_ < panels.end; ++span) {
    const IndexRange whole{span * span_panels_, std::min((span + 1) * span_panels_, num_panels_)};
    const int64_t stored = std::min(whole.end, panels.end) - std::max(whole.begin, panels.begin);
    if (num_stored_[group * num_spans_ + span].fetch_add(stored) + stored < whole.size()) continue;
    round_span(members, whole);
    if (is_arranged(members.size())) arrange_span(group, span);
  }
}

void Hidden::arrange_span(int64_t group, int64_t span) {
  const size_t index = static_cast<size_t>(group);
  const IndexRange members = all_.groups[index].members;
  order_.arrange(rows() + members.begin, members.size(), span * order_.bundle_cols / kGroupCols,
                 arranged_.get() + group_begins_[index] + span * span_bytes(members.size()));
}

void Hidden::round_span(IndexRange members, IndexRange panels) {
  const int64_t block = panels.begin * kPanelRows / kGroupCols;
  const int64_t num_blocks = panels.size() * kPanelRows / kGroupCols;
  for (int64_t member = members.begin; member < members.end; ++member) {
    down_.activation_kernels().quantize(floats_.get() + member * down_.cols() + block * kGroupCols,
                                        num_blocks, down_.blocks_per_scale(),
                                        quants_.get() + member * row_lines_ + block * block_lines_);
  }
}

}  // namespace ballast
