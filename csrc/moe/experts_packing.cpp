#include "moe/experts_packing.h"

#include <stdexcept>
#include <string>

#include "base/index_range.h"
#include "quant/matrix.h"

namespace ballast {

ExpertsPacking::ExpertsPacking(const Experts& experts, ThreadPool& pool, const PanelTarget& target)
    : experts_(experts),
      pool_(pool),
      target_(target),
      ranges_(
          ranges_by_node(experts.down_.matrix.format(), experts.expert_width(), pool.threads_per_node())) {
  if (!experts.parts().empty()) throw std::invalid_argument("the experts are packed already");
}

const ExpertMatrices& ExpertsPacking::source_of(Projection projection) const {
  if (projection == Projection::kGate) return experts_.gate_;
  return projection == Projection::kUp ? experts_.up_ : experts_.down_;
}

// Rows of gate and up, columns of down.
PanelSlice ExpertsPacking::slice_of(Projection projection, IndexRange range) const {
  const ExpertMatrices& source = source_of(projection);
  const HeadRows& rows = source.rows;
  if (projection == Projection::kDown) return {rows, range};
  return {{rows.num_heads, rows.stride, rows.offset + range.begin, range.size()}, {0, source.matrix.cols()}};
}

std::vector<int64_t> ExpertsPacking::node_bytes(Projection projection) const {
  std::vector<int64_t> bytes;
  for (const IndexRange& range : ranges_) {
    const PanelSlice slice = slice_of(projection, range);
    const int type = source_of(projection).matrix.format().ggml_type;
    bytes.push_back(range.size() == 0 ? 0
                                      : panels_bytes(type, slice.heads.num_heads, slice.heads.num_rows,
                                                     slice.cols.size(), PanelRows::kAsStored));
  }
  return bytes;
}

void ExpertsPacking::pack(Projection projection, const std::vector<std::shared_ptr<PanelFile>>& files) {
  if (!files.empty() && files.size() != ranges_.size()) {
    throw std::invalid_argument(std::to_string(files.size()) + " files; expected none, or one for each of " +
                                std::to_string(ranges_.size()) + " nodes");
  }
  std::vector<PanelSlice> slices;
  for (const IndexRange& range : ranges_) slices.push_back(slice_of(projection, range));
  packed_[static_cast<size_t>(projection)] =
      Panels::by_node(pool_, target_, source_of(projection).matrix, slices, files);
}

Experts ExpertsPacking::finish() const {
  for (const auto& by_node : packed_)
    if (by_node.empty())
      throw std::logic_error("gate, up and down must be packed before the experts are used");
  Experts experts = experts_;
  for (ExpertMatrices* source : {&experts.gate_, &experts.up_, &experts.down_})
    source->matrix = source->matrix.without_data();
  experts.num_nodes_ = pool_.num_nodes();
  const auto& [gate, up, down] = packed_;
  for (size_t node = 0; node < ranges_.size(); ++node) {
    if (ranges_[node].size() == 0) continue;
    const int number = static_cast<int>(node);
    experts.parts_.push_back(
        {number, pool_.node_index(number), gate[node], up[node], down[node], ranges_[node].begin});
  }
  return experts;
}

Experts Experts::packed(ThreadPool& pool, const PanelTarget& target) const {
  ExpertsPacking packing(*this, pool, target);
  for (const auto projection : {ExpertsPacking::Projection::kGate, ExpertsPacking::Projection::kUp,
                                ExpertsPacking::Projection::kDown})
    packing.pack(projection);
  return packing.finish();
}

}  // namespace ballast
