#include "moe/packed_experts.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "base/index_range.h"
#include "base/scratch.h"
#include "moe/hidden.h"
#include "ops/activations.h"
#include "ops/pointwise.h"
#include "ops/tile.h"
#include "threads/mixed_tasks.h"

namespace ballast {
namespace {

// Claims the thread's next task and returns where that task's weights begin; null when it is not known yet.
using NextWeights = std::function<const uint8_t*()>;

// A strip of hidden values is as wide as a block of down's activations, in panels of gate.
constexpr int kStripPanels = kGroupCols / kPanelRows;

// The tokens' activations as panels take them; those that take the same share them.
class Inputs {
 public:
  Inputs(ThreadPool& pool, const float* x, int64_t num_tokens)
      : pool_(pool), x_(x), num_tokens_(num_tokens) {}

  std::vector<const void*> rows_of_members(const Panels& panels, const Grouping& all) {
    const Activations& activations = activations_for(panels);
    std::vector<const void*> rows;
    rows.reserve(all.tokens.size());
    for (const int64_t token : all.tokens) rows.push_back(activations.row(token));
    return rows;
  }

 private:
  const Activations& activations_for(const Panels& panels) {
    for (const auto& [taker, activations] : made_) {
      if (taker->takes_same_activations(panels)) return *activations;
    }
    made_.emplace_back(&panels, std::make_unique<Activations>(pool_, panels, x_, num_tokens_));
    return *made_.back().second;
  }

  ThreadPool& pool_;
  const float* const x_;
  const int64_t num_tokens_;
  std::vector<std::pair<const Panels*, std::unique_ptr<Activations>>> made_;
};

// A NUMA node's work of one call: its slice of every chosen expert.
class PartForward {
 public:
  // Adds to `out` [T, D], the node's own where there are several.
  PartForward(const Experts& experts, const Experts::Part& part, const Grouping& all, int64_t num_tokens,
              int num_threads, float* out)
      : experts_(experts),
        gate_(*part.gate),
        up_(*part.up),
        down_(*part.down),
        first_row_(part.first_row),
        all_(all),
        width_(experts.hidden_width()),
        out_(out),
        hidden_(down_, all),
        strip_runs_(num_strips(), panels_per_task(num_strips(), num_groups(), num_tokens, num_threads)),
        down_runs_(down_.panels_per_head(),
                   panels_per_task(down_.panels_per_head(), 1, num_tokens, num_threads)) {}

  int64_t num_gate_tasks() const { return num_groups() * strip_runs_.count(); }
  int64_t num_down_tasks() const { return down_runs_.count(); }

  // Where the weights begin that a task reads.
  const uint8_t* gate_weights(int64_t task) const {
    return gate_.panel(group_of(task).expert, panels_of(strip_run_of(task)).begin);
  }
  const uint8_t* down_weights(int64_t task) const {
    return down_.panel(all_.groups[0].expert, down_runs_[task].begin);
  }

  // A task owns some strips of one expert's hidden values, and makes a few of them at a time, so that
  // products and the tokens' activations stay in the nearer caches.
  void gate_up(int64_t task, const void* const* gate_rows, const void* const* up_rows,
               const NextWeights& next_weights) {
    const Grouping::Group& group = group_of(task);
    const IndexRange run = strip_run_of(task);
    const Chunks blocks(group.members.size(), tokens_per_block(gate_));
    const int64_t strips_together = gate_.token_block().most_panels / kStripPanels;
    for (int64_t block = 0; block < blocks.count(); ++block) {
      const IndexRange members{group.members.begin + blocks[block].begin,
                               group.members.begin + blocks[block].end};
      prefetch_rows(gate_, gate_rows + members.begin, members.size());
      for (int64_t strip = run.begin; strip < run.end; strip += strips_together) {
        const IndexRange strips{strip, std::min(strip + strips_together, run.end)};
        const uint8_t* next = nullptr;
        if (strips.end < run.end) {
          next = gate_.panel(group.expert, panels_of(strips).end);
        } else if (block + 1 == blocks.count()) {
          next = next_weights();
        }
        make_hidden(group.expert, strips, members, gate_rows, up_rows, next);
      }
    }
    hidden_.round(task / strip_runs_.count(), panels_of(run));
  }

  // A task owns some columns of the output and walks the experts in ascending order: that fixes the order of
  // the sum.
  void down(int64_t task, int64_t num_tokens, const NextWeights& next_weights) {
    const IndexRange run = down_runs_[task];
    const int64_t col_begin = run.begin * kPanelRows;
    const int64_t col_end = std::min(run.end * kPanelRows, width_);
    for (int64_t token = 0; token < num_tokens; ++token) {
      std::fill_n(out_ + token * width_ + col_begin, col_end - col_begin, 0.0f);
    }
    for (auto group = all_.groups.begin(); group != all_.groups.end(); ++group) {
      const uint8_t* next = nullptr;
      if (const auto after = std::next(group); after != all_.groups.end()) {
        next = down_.panel(after->expert, run.begin);
        const int64_t size = std::min(after->members.size(), tokens_per_block(down_));
        if (!hidden_.is_arranged(size)) prefetch_rows(down_, hidden_.rows() + after->members.begin, size);
      } else {
        next = next_weights();
      }
      const float scale = experts_.scales(group->expert).down;
      const Chunks blocks(group->members.size(), tokens_per_block(down_));
      for (int64_t block = 0; block < blocks.count(); ++block) {
        const int64_t first = group->members.begin + blocks[block].begin;
        const int64_t size = blocks[block].size();
        const Scratch<float> scratch(run.size() * size * kPanelRows);
        float* products = scratch.get();
        const uint8_t* after_this = block + 1 == blocks.count() ? next : nullptr;
        if (hidden_.is_arranged(size)) {
          const ArrangedTokens arranged = hidden_.arranged(group - all_.groups.begin(), blocks[block].begin);
          down_.multiply(group->expert, run, arranged, hidden_.rows() + first, size, products, after_this);
        } else {
          down_.multiply(group->expert, run, hidden_.rows() + first, size, products, after_this);
        }
        for (int64_t i = 0; i < size; ++i, products += kPanelRows) {
          const size_t member = static_cast<size_t>(first + i);
          float* const row = out_ + all_.tokens[member] * width_;
          add_products(products, size * kPanelRows, run, all_.weights[member] * scale, row);
          if (const float* bias = down_bias(group->expert))
            add_products(bias + col_begin, kPanelRows, run, all_.weights[member], row);
        }
      }
    }
  }

 private:
  void make_hidden(int64_t expert, IndexRange strips, IndexRange members, const void* const* gate_rows,
                   const void* const* up_rows, const uint8_t* next) {
    const IndexRange panels = panels_of(strips);
    const int64_t size = members.size();
    const int64_t num_products = panels.size() * size * kPanelRows;
    const Scratch<float> scratch(2 * num_products);
    float* gates = scratch.get();
    float* ups = gates + num_products;
    gate_.multiply(expert, panels, gate_rows + members.begin, size, gates, up_.panel(expert, panels.begin));
    up_.multiply(expert, panels, up_rows + members.begin, size, ups, next);
    const Experts::Scales scale = experts_.scales(expert);
    scale_products(scale.gate, num_products, gates);
    scale_products(scale.up, num_products, ups);
    if (const ExpertBiases* biases = experts_.biases()) {
      add_bias(biases->gate, expert, panels, size, gates);
      add_bias(biases->up, expert, panels, size, ups);
    }
    if (const auto& unit = experts_.unit()) {
      apply_unit(gate_.kernels(), *unit, gates, ups, num_products, gates);
    } else {
      gate_.kernels().silu_mul(gates, ups, num_products, gates);
    }
    for (int64_t index = panels.begin; index < panels.end; ++index, gates += size * kPanelRows)
      hidden_.store(members, index, gates);
  }

  // Adds an expert's bias of gate or up to the products with these panels, of each member 16 a panel.
  void add_bias(const std::vector<float>& bias, int64_t expert, IndexRange panels, int64_t num_members,
                float* products) const {
    const float* rows = bias.data() + expert * experts_.expert_width() + first_row_;
    for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
      const int64_t row = panel * kPanelRows;
      const int64_t size = std::min<int64_t>(kPanelRows, gate_.head_rows() - row);
      for (int64_t member = 0; member < num_members; ++member, products += kPanelRows) {
        for (int64_t i = 0; i < size; ++i) products[i] += rows[row + i];
      }
    }
  }

  // What an expert adds to its results, which the node with the first rows does; null for nothing.
  const float* down_bias(int64_t expert) const {
    const ExpertBiases* biases = experts_.biases();
    return biases == nullptr || first_row_ != 0 ? nullptr : biases->down.data() + expert * width_;
  }

  // row += weight * a token's products, `stride` floats from a panel's to the next one's.
  void add_products(const float* products, int64_t stride, IndexRange panels, float weight,
                    float* row) const {
    for (int64_t index = panels.begin; index < panels.end; ++index, products += stride) {
      const int64_t col = index * kPanelRows;
      add_scaled_products(products, weight, std::min<int64_t>(kPanelRows, width_ - col), row + col);
    }
  }

  const Grouping::Group& group_of(int64_t gate_task) const {
    return all_.groups[static_cast<size_t>(gate_task / strip_runs_.count())];
  }
  IndexRange strip_run_of(int64_t gate_task) const { return strip_runs_[gate_task % strip_runs_.count()]; }
  IndexRange panels_of(IndexRange strips) const {
    return {strips.begin * kStripPanels, std::min(strips.end * kStripPanels, gate_.panels_per_head())};
  }
  int64_t num_groups() const { return static_cast<int64_t>(all_.groups.size()); }
  int64_t num_strips() const { return (gate_.panels_per_head() + kStripPanels - 1) / kStripPanels; }

  const Experts& experts_;
  const Panels& gate_;
  const Panels& up_;
  const Panels& down_;
  const int64_t first_row_;  // of each expert's gate and up
  const Grouping& all_;
  const int64_t width_;
  float* const out_;
  Hidden hidden_;
  const Chunks strip_runs_;
  const Chunks down_runs_;
};

// One call on all nodes.
class Forward {
 public:
  Forward(ThreadPool& pool, const PackedCall& call, Inputs& inputs, int64_t num_tokens)
      : num_tokens_(num_tokens),
        width_(call.experts->hidden_width()),
        out_(call.out),
        by_node_(static_cast<size_t>(pool.num_nodes()), nullptr) {
    const std::vector<Experts::Part>& parts = call.experts->parts();
    gate_rows_ = inputs.rows_of_members(*parts[0].gate, *call.grouping);
    up_rows_ = inputs.rows_of_members(*parts[0].up, *call.grouping);
    const std::vector<int> num_threads = pool.threads_per_node();
    parts_.reserve(parts.size());
    for (const Experts::Part& part : parts) {
      if (parts.size() > 1) partials_.emplace_back(num_tokens * width_);
      const size_t node = static_cast<size_t>(part.node);
      parts_.emplace_back(*call.experts, part, *call.grouping, num_tokens, num_threads[node],
                          partials_.empty() ? out_ : partials_.back().get());
      by_node_[node] = &parts_.back();
    }
  }

  int64_t num_gate_tasks(size_t node) const { return by_node_[node] ? by_node_[node]->num_gate_tasks() : 0; }
  int64_t num_down_tasks(size_t node) const { return by_node_[node] ? by_node_[node]->num_down_tasks() : 0; }

  const uint8_t* gate_weights(size_t node, int64_t task) const { return by_node_[node]->gate_weights(task); }
  const uint8_t* down_weights(size_t node, int64_t task) const { return by_node_[node]->down_weights(task); }

  void gate_up(size_t node, int64_t task, const NextWeights& next_weights) {
    by_node_[node]->gate_up(task, gate_rows_.data(), up_rows_.data(), next_weights);
  }
  void down(size_t node, int64_t task, const NextWeights& next_weights) {
    by_node_[node]->down(task, num_tokens_, next_weights);
  }

  // Adds the results of the nodes, if there are several.
  void add_up(ThreadPool& pool) {
    if (partials_.empty()) return;
    constexpr int64_t kTaskFloats = 16384;  // some microseconds; a few tokens are not worth waking a thread
    const Chunks chunks(num_tokens_ * width_, kTaskFloats);
    pool.parallel_for(chunks.count(), [&](int64_t task) {
      const IndexRange range = chunks[task];
      std::copy(partials_[0].get() + range.begin, partials_[0].get() + range.end, out_ + range.begin);
      for (size_t part = 1; part < partials_.size(); ++part) {
        const float* partial = partials_[part].get();
        for (int64_t i = range.begin; i < range.end; ++i) out_[i] += partial[i];
      }
    });
  }

 private:
  const int64_t num_tokens_;
  const int64_t width_;
  float* const out_;
  std::vector<const void*> gate_rows_;
  std::vector<const void*> up_rows_;
  std::vector<Scratch<float>> partials_;  // [T, D] each
  std::vector<PartForward> parts_;
  std::vector<PartForward*> by_node_;  // null for a node without a part
};

// One of the loops that a call's experts take: how many tasks it has on a node, where the weights of a task
// begin, and the task itself.
struct Loop {
  int64_t (Forward::*num_tasks)(size_t node) const;
  const uint8_t* (Forward::*weights)(size_t node, int64_t task) const;
  void (Forward::*run)(size_t node, int64_t task, const NextWeights& next_weights);
};
constexpr Loop kGateUp{&Forward::num_gate_tasks, &Forward::gate_weights, &Forward::gate_up};
constexpr Loop kDown{&Forward::num_down_tasks, &Forward::down_weights, &Forward::down};

// The calls' tasks evenly mixed, each on a thread of its node. A task that is claimed early waits for its
// thread, even if another one is free before: worth it where weights are waited for.
void run_mixed(ThreadPool& pool, std::vector<Forward>& forwards, const Loop& loop, bool claims_early) {
  std::vector<std::vector<MixedTask>> tasks;  // by node
  std::vector<int64_t> counts;
  for (size_t node = 0; node < static_cast<size_t>(pool.num_nodes()); ++node) {
    std::vector<int64_t> by_call;
    for (const Forward& forward : forwards) by_call.push_back((forward.*loop.num_tasks)(node));
    tasks.push_back(mixed_tasks(by_call));
    counts.push_back(static_cast<int64_t>(tasks.back().size()));
  }
  pool.parallel_for_nodes(counts, [&](int on_node, int64_t index) {
    const size_t node = static_cast<size_t>(on_node);
    const auto find_next = [&]() -> const uint8_t* {
      const int64_t claimed = claims_early ? ThreadPool::claim_next() : ThreadPool::kNoTask;
      if (claimed == ThreadPool::kNoTask) return nullptr;
      const MixedTask& next = tasks[node][static_cast<size_t>(claimed)];
      return (forwards[next.row].*loop.weights)(node, next.index);
    };
    const MixedTask& task = tasks[node][static_cast<size_t>(index)];
    (forwards[task.row].*loop.run)(node, task.index, std::cref(find_next));
  });
}

}  // namespace

void forward_packed(ThreadPool& pool, const float* x, int64_t num_tokens,
                    const std::vector<PackedCall>& calls) {
  Inputs inputs(pool, x, num_tokens);
  std::vector<Forward> forwards;
  forwards.reserve(calls.size());
  for (const PackedCall& call : calls) forwards.emplace_back(pool, call, inputs, num_tokens);
  for (const Loop& loop : {kGateUp, kDown}) run_mixed(pool, forwards, loop, wait_for_weights(num_tokens));
  for (Forward& forward : forwards) forward.add_up(pool);
}

}  // namespace ballast
