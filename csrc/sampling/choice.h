// Chooses one token from a row of logits.
#pragma once

#include <cstdint>
#include <optional>

#include "base/scratch.h"
#include "cpu/sampling.h"
#include "sampling/ranking.h"
#include "sampling/slices.h"

namespace ballast {

// The sampling parameters that restrict the tokens and scale their probabilities.
struct Selection {
  double temperature;  // 0: greedy
  int64_t top_k;       // 0: all tokens
  double top_p;
  double min_p;
};

// Calls `visit(name, field)` for every field.
template <class Visit>
void visit_fields(Selection& selection, const Visit& visit) {
  visit("temperature", selection.temperature);
  visit("top_k", selection.top_k);
  visit("top_p", selection.top_p);
  visit("min_p", selection.min_p);
}

struct Choice {
  int32_t token;
  double highest;  // logit; if it is not finite, no token can be sampled, and `token` is one that has it
};

// Whether computing the weights of a row of n logits takes long enough to justify waking threads.
bool is_worth_dividing(const Selection& selection, int64_t n);

// Samples the token at quantile `uniform`, in [0, 1), of the distribution that a selection makes of a row's n
// logits. Call find_peaks for every slice, then `begin`, `weigh` for every slice if it returned true, and
// `finish`. Calls for slices may run concurrently on any threads in any order. Decision 1 in docs/decisions
// defines the order of the tokens.
template <class Logit>
class RowChoice {
 public:
  // All pointers and references must outlive this. Construct and destroy it on the same thread.
  RowChoice(const SamplingKernels& kernels, const LogitKernels<Logit>& row_kernels, const Logit* row,
            int64_t n, const Selection& selection, double uniform);

  int64_t num_slices() const { return slices_.count(); }
  void find_peaks(int64_t slice) const;
  // Returns whether `weigh` must be called for the slices; otherwise `finish` is next.
  bool begin();
  void weigh(int64_t slice) const;
  Choice finish() const;

 private:
  // The last token by rank that top_k and top_p allow (-1: they exclude none), and the total weight up to it.
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
  // If `weigh` is needed, exactly one of these two is in use.
  std::optional<Ranking<Logit>> ranking_;
  Scratch<double> block_sums_;
};

// Runs all steps on the calling thread.
template <class Logit>
Choice choose(const SamplingKernels& kernels, const LogitKernels<Logit>& row_kernels, const Logit* row,
              int64_t n, const Selection& selection, double uniform);

}  // namespace ballast
