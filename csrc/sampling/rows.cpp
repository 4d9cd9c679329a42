#include "sampling/rows.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/index_range.h"
#include "base/scratch.h"
#include "sampling/slices.h"

namespace ballast {
namespace {

// Calls task(row, pool) for each row. If the pool has at least two threads per row, one row after the other,
// with the pool; otherwise one row per thread, with a null pool.
template <class Task>
void for_rows(ThreadPool& pool, size_t num_rows, const Task& task) {
  if (2 * num_rows <= static_cast<size_t>(pool.num_threads())) {
    for (size_t row = 0; row < num_rows; ++row) task(row, &pool);
  } else {
    pool.parallel_for(static_cast<int64_t>(num_rows),
                      [&](int64_t row) { task(static_cast<size_t>(row), nullptr); });
  }
}

// Limits memory: the weights by rank take 200 KB per row.
constexpr size_t kRowsAtOnce = 32;

// The steps of RowChoice for one row. A row that its sampler adjusts is first copied to doubles.
class RowInSteps {
 public:
  RowInSteps(const SamplingKernels& kernels, SampledRow& row, int64_t vocabulary)
      : kernels_(kernels),
        row_(row),
        vocabulary_(vocabulary),
        is_divided_(is_worth_dividing(row.sampler->selection(), vocabulary)),
        is_adjusted_(row.allowed != nullptr || row.sampler->is_adjusted()) {
    const Selection& selection = row.sampler->selection();
    if (is_adjusted_) {
      adjusted_ = Scratch<double>(vocabulary);
      doubles_.emplace(kernels, kernels.doubles, adjusted_.get(), vocabulary, selection,
                       row.sampler->uniform());
    } else {
      floats_.emplace(kernels, kernels.floats, row.logits, vocabulary, selection, row.sampler->uniform());
    }
  }

  bool is_divided() const { return is_divided_; }
  bool is_adjusted() const { return is_adjusted_; }
  bool is_weighed() const { return is_weighed_; }
  int64_t num_slices() const { return RowSlices(vocabulary_, nullptr).count(); }

  void widen(int64_t slice) {
    const IndexRange range = RowSlices(vocabulary_, nullptr)[slice];
    kernels_.widen(row_.logits + range.begin, range.size(),
                   row_.allowed == nullptr ? nullptr : row_.allowed + range.begin / 8,
                   adjusted_.get() + range.begin);
  }
  void adjust() { row_.sampler->adjust(adjusted_.get(), vocabulary_, row_.allowed); }
  void find_peaks(int64_t slice) { is_adjusted_ ? doubles_->find_peaks(slice) : floats_->find_peaks(slice); }
  void begin() { is_weighed_ = is_adjusted_ ? doubles_->begin() : floats_->begin(); }
  void weigh(int64_t slice) { is_adjusted_ ? doubles_->weigh(slice) : floats_->weigh(slice); }
  void finish() {
    row_.choice = is_adjusted_ ? doubles_->finish() : floats_->finish();
    if (std::isfinite(row_.choice.highest)) row_.sampler->record(row_.choice.token);
  }

 private:
  const SamplingKernels& kernels_;
  SampledRow& row_;
  int64_t vocabulary_;
  bool is_divided_;
  bool is_adjusted_;
  bool is_weighed_ = false;
  Scratch<double> adjusted_;
  std::optional<RowChoice<float>> floats_;
  std::optional<RowChoice<double>> doubles_;
};

// Calls step(row, slice) for each slice of the rows for which is_asked returns true. The slices of a row that
// is not worth dividing are one task.
template <class IsAsked, class Step>
void for_slices(ThreadPool& pool, std::vector<RowInSteps>& rows, const IsAsked& is_asked, const Step& step) {
  struct Task {
    RowInSteps* row;
    IndexRange slices;
  };
  std::vector<Task> tasks;
  bool wakes = 2 * rows.size() > static_cast<size_t>(pool.num_threads());
  for (RowInSteps& row : rows) {
    if (!is_asked(row)) continue;
    const int64_t num = row.num_slices();
    const int64_t together = row.is_divided() ? 1 : num;
    wakes = wakes || row.is_divided();
    for (int64_t begin = 0; begin < num; begin += together)
      tasks.push_back({&row, {begin, begin + together}});
  }
  const auto run = [&](int64_t index) {
    const Task& task = tasks[static_cast<size_t>(index)];
    for (int64_t slice = task.slices.begin; slice < task.slices.end; ++slice) step(*task.row, slice);
  };
  const auto num = static_cast<int64_t>(tasks.size());
  if (wakes && num > 1) {
    pool.parallel_for(num, run);
  } else {
    for (int64_t index = 0; index < num; ++index) run(index);
  }
}

void sample_together(ThreadPool& pool, std::vector<RowInSteps>& rows) {
  for_slices(
      pool, rows, [](const RowInSteps& row) { return row.is_adjusted(); },
      [](RowInSteps& row, int64_t slice) { row.widen(slice); });
  for (RowInSteps& row : rows) {
    if (row.is_adjusted()) row.adjust();
  }
  for_slices(
      pool, rows, [](const RowInSteps&) { return true; },
      [](RowInSteps& row, int64_t slice) { row.find_peaks(slice); });
  bool is_any_divided = false;
  for (RowInSteps& row : rows) {
    row.begin();
    is_any_divided = is_any_divided || (row.is_weighed() && row.is_divided());
  }
  for_slices(
      pool, rows, [](const RowInSteps& row) { return row.is_weighed(); },
      [](RowInSteps& row, int64_t slice) { row.weigh(slice); });
  if (is_any_divided && rows.size() > 1) {
    pool.parallel_for(static_cast<int64_t>(rows.size()),
                      [&](int64_t index) { rows[static_cast<size_t>(index)].finish(); });
  } else {
    for (RowInSteps& row : rows) row.finish();
  }
}

}  // namespace

void sample_rows(ThreadPool& pool, const SamplingKernels& kernels, int64_t vocabulary,
                 std::vector<SampledRow>& rows) {
  for (size_t begin = 0; begin < rows.size(); begin += kRowsAtOnce) {
    const size_t end = std::min(rows.size(), begin + kRowsAtOnce);
    std::vector<RowInSteps> steps;
    steps.reserve(end - begin);
    for (size_t i = begin; i < end; ++i) steps.emplace_back(kernels, rows[i], vocabulary);
    sample_together(pool, steps);
  }
}

void score_rows(ThreadPool& pool, const SamplingKernels& kernels, int64_t vocabulary,
                std::vector<ScoredRow>& rows) {
  for_rows(pool, rows.size(), [&](size_t index, ThreadPool* dividing) {
    ScoredRow& row = rows[index];
    row.found = find_logprobs(kernels, row.logits, vocabulary, row.token, row.num_top, row.top_tokens,
                              row.top_logprobs, dividing);
  });
}

}  // namespace ballast
