// Packs the experts of one layer, one projection after the other, so that the caller can release the source
// of each projection before the next one is packed.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "moe/experts.h"
#include "quant/panels.h"
#include "threads/thread_pool.h"

namespace ballast {

class ExpertsPacking {
 public:
  enum class Projection : int { kGate, kUp, kDown };

  // Experts that are not packed yet. The pool must outlive this object. Throws std::invalid_argument for
  // packed experts.
  ExpertsPacking(const Experts& experts, ThreadPool& pool, const PanelTarget& target);

  // Bytes of the panels of a projection on each node of the pool; 0 for a node that holds none.
  std::vector<int64_t> node_bytes(Projection projection) const;
  // Each node packs its range of the intermediate dimension. files[n] keeps the panels of node n, or is null;
  // empty `files`: none are kept. Throws as Panels does, and std::invalid_argument for a wrong number of
  // files.
  void pack(Projection projection, const std::vector<std::shared_ptr<PanelFile>>& files = {});
  // The packed experts. `forward` takes pools with the same nodes. Throws std::logic_error unless all
  // projections are packed.
  Experts finish() const;

 private:
  const ExpertMatrices& source_of(Projection projection) const;
  PanelSlice slice_of(Projection projection, IndexRange range) const;

  const Experts experts_;
  ThreadPool& pool_;
  const PanelTarget target_;
  const std::vector<IndexRange> ranges_;  // of the intermediate dimension, by node
  std::array<std::vector<std::shared_ptr<const Panels>>, 3> packed_;  // [projection][node]
};

}  // namespace ballast
