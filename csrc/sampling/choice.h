// One token of a row of logits.
#pragma once

#include <cstdint>
#include <optional>

#include "base/scratch.h"
#include "cpu/sampling.h"
#include "sampling/ranking.h"
#include "sampling/slices.h"

namespace ballast {

// Which tokens may be chosen, and how likely.
struct Selection {
  double temperature;  // 0 is greedy
  int64_t top_k;       // 0 for every token
  double top_p;
  double min_p;
};

struct Choice {
  int32_t token;
  double highest;  // logit; where it is not finite, nothing can be chosen and the token is one that has it
};

// Whether enough of a row of n logits is weighed to justify waking threads for it.
bool is_worth_dividing(const Selection& selection, int64_t n);

// The token at `uniform`, 0…1, of what a selection leaves of a row's n logits, in steps: those of slices may
// run side by side on any threads, in any order, and the others follow all of them. Decision 1 in
// docs/decisions defines the order of the tokens.
template <class Logit>
class RowChoice {
 public:
  // All that is pointed to outlives the choice, which lives and dies on one thread.
  RowChoice(const SamplingKernels& kernels, const LogitKernels<Logit>& row_kernels, const Logit* row,
            int64_t n, const Selection& selection, double uniform);

  int64_t num_slices() const { return slices_.count(); }
  void find_peaks(int64_t slice) const;
  // Returns whether slices are to be weighed; else `finish` comes next.
  bool begin();
  void weigh(int64_t slice) const;
  Choice finish() const;

 private:
  // The last token that may be drawn, where it is not the last that has a weight, and the weight of all.
  RankedToken last_by_rank() const;
  int32_t draw_by_rank() const;
  int32_t draw_by_id() const;
  bool is_counted() const { return selection_.top_k > 0 && selection_.top_k < n_; }

  const SamplingKernels& kernels_;
  const LogitKernels<Logit>& row_kernels_;
  const Logit* row_;
  int64_t n_;
  Selection selection_;
  double uniform_;
  RowSlices slices_;
  Scratch<Peaks> slice_peaks_;
  Scratch<Logit> block_peaks_;
  Choice best_{};
  Weighing weighing_{};
  // One of the two, where slices are weighed.
  std::optional<Ranking<Logit>> ranking_;
  Scratch<double> block_sums_;
};

// All steps, one after the other.
template <class Logit>
Choice choose(const SamplingKernels& kernels, const LogitKernels<Logit>& row_kernels, const Logit* row,
              int64_t n, const Selection& selection, double uniform);

}  // namespace ballast
