#include "ops/attention/paged_attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/index_range.h"
#include "ops/transpose.h"

namespace ballast {
namespace {

// Query rows that share a pass over the cache: few enough that a line of them, two vectors at most of the
// widest instruction set, stays in registers while cache entries go by.
constexpr int64_t kGroupRows = 32;
// Positions whose state is formed by itself and then merged in order. Stretches begin at multiples of this in
// the sequence, so the arithmetic of a row does not depend on who computes them, nor on how its sequence was
// cut into steps, chunks or blocks.
constexpr int64_t kStretchPositions = 4 * kSpanPositions;

// Most bytes of states that a call holds at a time, unless a single group needs more: many rows of a long
// sequence could take gigabytes. Beyond this, groups are processed in several rounds.
constexpr int64_t kMostStateBytes = int64_t{256} << 20;

int64_t state_floats(int64_t value_width) { return kGroupRows * (value_width + 2); }
int64_t state_bytes(int64_t value_width) {
  return state_floats(value_width) * static_cast<int64_t>(sizeof(float));
}

// With this many groups per thread, threads finish together even though no group is divided.
constexpr int64_t kGroupsPerThread = 4;

// Rows begin…end of one request and one head of the cache, row i being head i % G of its token i / G among
// the G heads that share it.
struct RowGroup {
  int64_t request;
  int64_t kv_head;
  int64_t first_token;  // of the request
  IndexRange rows;
  int64_t num_positions;   // that its last row sees, or that are chosen for its token
  int64_t first_position;  // a multiple of kStretchPositions; no row sees one before it
  int64_t first_stretch;   // among those of all groups

  int64_t num_padded() const { return Chunks(rows.size(), kAttentionRows).count() * kAttentionRows; }
  int64_t num_stretches() const { return stretches().count(); }
  // The positions of a stretch.
  IndexRange stretch(int64_t index) const {
    const IndexRange range = stretches()[index];
    return {first_position + range.begin, first_position + range.end};
  }

 private:
  Chunks stretches() const { return {num_positions - first_position, kStretchPositions}; }
};

// The first position that a token sees at this one.
int64_t first_seen(int64_t position, int64_t window) {
  return window == 0 ? 0 : std::max<int64_t>(0, position - window + 1);
}

// Groups of one token each: what is chosen for one is not for another. counts [T] of each token's rows.
std::vector<RowGroup> group_by_token(const PagedBatch& batch, const AttentionShape& shape,
                                     const int32_t* counts) {
  const int64_t num_heads = shape.group_heads();
  const Chunks chunks(num_heads, kGroupRows);
  std::vector<RowGroup> groups;
  int64_t num_stretches = 0;
  for (int64_t request = 0; request < batch.num_requests; ++request) {
    const int64_t first_token = batch.query_indptr[request];
    for (int64_t token = first_token; token < batch.query_indptr[request + 1]; ++token) {
      const int64_t first_row = (token - first_token) * num_heads;
      for (int64_t chunk = 0; chunk < chunks.count(); ++chunk) {
        const IndexRange rows{first_row + chunks[chunk].begin, first_row + chunks[chunk].end};
        for (int64_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
          groups.push_back({request, kv_head, first_token, rows, counts[token], 0, num_stretches});
          num_stretches += groups.back().num_stretches();
        }
      }
    }
  }
  return groups;
}

std::vector<RowGroup> group_rows(const PagedBatch& batch, const AttentionShape& shape) {
  const int64_t num_heads = shape.group_heads();
  std::vector<RowGroup> groups;
  int64_t num_stretches = 0;
  for (int64_t request = 0; request < batch.num_requests; ++request) {
    const int64_t first_token = batch.query_indptr[request];
    const Chunks chunks((batch.query_indptr[request + 1] - first_token) * num_heads, kGroupRows);
    for (int64_t chunk = 0; chunk < chunks.count(); ++chunk) {
      const IndexRange rows = chunks[chunk];
      const int32_t* begin = batch.positions + first_token + rows.begin / num_heads;
      const int32_t* end = batch.positions + first_token + (rows.end - 1) / num_heads + 1;
      const int64_t last = *std::max_element(begin, end);
      const int64_t first = first_seen(*std::min_element(begin, end), shape.window);
      for (int64_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
        groups.push_back({request, kv_head, first_token, rows, last + 1,
                          first / kStretchPositions * kStretchPositions, num_stretches});
        num_stretches += groups.back().num_stretches();
      }
    }
  }
  return groups;
}

// Floats of undefined content, in memory that only grows. Each thread keeps one across calls: new memory
// would cause page faults in each call.
class GrowOnlyBuffer {
 public:
  float* at_least(int64_t num_floats) {
    if (num_floats > size_) {
      memory_.reset(new float[static_cast<size_t>(num_floats)]);
      size_ = num_floats;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<float[]> memory_;
  int64_t size_ = 0;
};

// A call's constants, and its steps on one group.
class GroupAttention {
 public:
  GroupAttention(const AttentionKernels& kernels, const AttentionQuery& query, const CacheRows& keys,
                 const CacheRows& values, const PagedBatch& batch, const AttentionShape& shape, float* out,
                 const ChosenPositions* chosen, const ListedRows* listed = nullptr)
      : kernels_(kernels),
        query_(query),
        keys_(keys),
        values_(values),
        shares_rows_(keys.plane.bytes == values.plane.bytes),
        batch_(batch),
        shape_(shape),
        out_(out),
        chosen_(chosen),
        listed_(listed) {}

  AttentionState state_at(float* memory, const RowGroup& group) const {
    return {memory, memory + group.num_padded(), memory + 2 * group.num_padded()};
  }

  // The group's queries [key_width][rows], in this thread's memory until it gathers again; zeros in surplus
  // rows.
  const float* gather(const RowGroup& group) const {
    thread_local GrowOnlyBuffer buffer;
    const int64_t num_rows = group.num_padded();
    float* query = buffer.at_least(num_rows * shape_.key_width);
    for_runs(group, [&](int64_t row, int64_t size, int64_t source) {
      float* to = query + row;
      for (const QueryPart& part : {query_.first, query_.second}) {
        transpose(part.rows + source * part.stride, part.stride, size, part.width, to, num_rows);
        to += part.width * num_rows;
      }
    });
    for (int64_t k = 0; k < shape_.key_width; ++k) {
      std::fill(query + k * num_rows + group.rows.size(), query + (k + 1) * num_rows, 0.0f);
    }
    return query;
  }

  // The state of one stretch of the group's positions.
  void attend(const RowGroup& group, const float* query, int64_t stretch, const AttentionState& state) const {
    thread_local GrowOnlyBuffer buffer;
    const int64_t num_rows = group.num_padded();
    const int64_t stride = padded_width();
    float* num_seen = buffer.at_least(num_rows * (2 + kSpanPositions + 1) + kSpanPositions * stride);
    float* passed = num_seen + num_rows;
    float* scores = passed + num_rows;
    float* widened = scores + num_rows * (kSpanPositions + 1);
    const IndexRange positions = group.stretch(stretch);
    const float fewest_seen = count_seen(group, positions.begin, num_seen);
    const void* keys[kStretchPositions];
    const void* values[kStretchPositions];
    locate(group, positions, keys_, keys);
    if (!shares_rows_) locate(group, positions, values_, values);
    AttentionStretch in{query,
                        num_seen,
                        fewest_seen,
                        num_rows,
                        group.rows.size(),
                        {keys, keys_.plane.is_half, widened, stride},
                        shares_rows_ ? nullptr : values,
                        positions.size(),
                        shape_.key_width,
                        shape_.value_width,
                        shape_.scale,
                        scores};
    if (shape_.window != 0) {
      count_passed(group, positions.begin, passed);
      in.first_seen = passed;
      in.fewest_passed = *std::min_element(passed, passed + group.rows.size());
      in.most_passed = *std::max_element(passed, passed + group.rows.size());
    }
    kernels_.attend(in, state);
  }

  void merge(const RowGroup& group, const AttentionState& next, const AttentionState& state) const {
    kernels_.merge(group.num_padded(), shape_.value_width, next, state);
  }

  void write(const RowGroup& group, const AttentionState& state) const {
    for_runs(group, [&](int64_t row, int64_t size, int64_t target) {
      float* out = out_ + target * shape_.value_width;
      transpose(state.values + row, group.num_padded(), shape_.value_width, size, out, shape_.value_width);
      for (int64_t i = 0; i < size; ++i) {
        const float share = 1.0f / (state.sum[row + i] + sink_weight(target + i, state.maximum[row + i]));
        for (int64_t k = 0; k < shape_.value_width; ++k) out[i * shape_.value_width + k] *= share;
      }
    });
  }

 private:
  // The weight of the sink of the head of query row `row`.
  float sink_weight(int64_t row, float maximum) const {
    return shape_.sinks == nullptr ? 0.0f : std::exp(shape_.sinks[row % shape_.num_heads] - maximum);
  }

  // Calls run(row, size, index) for neighbours among the group's rows that are neighbours among all queries
  // too, from `index` on there.
  template <class Run>
  void for_runs(const RowGroup& group, const Run& run) const {
    const int64_t num_heads = shape_.group_heads();
    for (int64_t row = group.rows.begin; row < group.rows.end;) {
      const int64_t token = group.first_token + row / num_heads;
      const int64_t head = group.kv_head * num_heads + row % num_heads;
      const int64_t rest = group.rows.end - row;
      const int64_t size = shape_.num_kv_heads == 1 ? rest : std::min(rest, num_heads - row % num_heads);
      run(row - group.rows.begin, size, token * shape_.num_heads + head);
      row += size;
    }
  }

  // Of the positions from `begin` on, those that each row sees; returns the fewest that a row of the request
  // sees.
  float count_seen(const RowGroup& group, int64_t begin, float* num_seen) const {
    for (int64_t row = group.rows.begin; row < group.rows.end; ++row) {
      const int64_t all = chosen_ != nullptr || listed_ != nullptr
                              ? group.num_positions
                              : batch_.positions[group.first_token + row / shape_.group_heads()] + int64_t{1};
      num_seen[row - group.rows.begin] = static_cast<float>(all - begin);
    }
    std::fill(num_seen + group.rows.size(), num_seen + group.num_padded(), 0.0f);
    return *std::min_element(num_seen, num_seen + group.rows.size());
  }

  // Of the positions from `begin` on, where the window of each row begins.
  void count_passed(const RowGroup& group, int64_t begin, float* passed) const {
    for (int64_t row = group.rows.begin; row < group.rows.end; ++row) {
      const int64_t position = batch_.positions[group.first_token + row / shape_.group_heads()];
      passed[row - group.rows.begin] = static_cast<float>(first_seen(position, shape_.window) - begin);
    }
    std::fill(passed + group.rows.size(), passed + group.num_padded(), 0.0f);
  }

  // Numbers of the widest row that is widened, padded; 0 if none is.
  int64_t padded_width() const {
    if (!keys_.plane.is_half) return 0;
    const int64_t widest = std::max(shape_.key_width, shape_.value_width);
    return Chunks(widest, kAttentionRows).count() * kAttentionRows;
  }

  void locate(const RowGroup& group, IndexRange positions, const CacheRows& cache, const void** rows) const {
    if (listed_ != nullptr) {
      listed_->locate(group.request, group.first_token + group.rows.begin / shape_.group_heads(), positions,
                      rows);
      return;
    }
    const int64_t token = group.first_token + group.rows.begin / shape_.group_heads();
    const int32_t* chosen = chosen_ == nullptr ? nullptr : chosen_->rows + token * chosen_->stride;
    for (int64_t index = positions.begin; index < positions.end; ++index) {
      const int64_t position = chosen == nullptr ? index : chosen[index];
      const int64_t slot = batch_.slot(group.request, position);
      rows[index - positions.begin] =
          cache.plane.at(slot * cache.slot_stride + group.kv_head * cache.head_stride);
    }
  }

  const AttentionKernels& kernels_;
  const AttentionQuery& query_;
  const CacheRows& keys_;
  const CacheRows& values_;
  const bool shares_rows_;
  const PagedBatch& batch_;
  const AttentionShape& shape_;
  float* out_;
  const ChosenPositions* chosen_;
  const ListedRows* listed_;
};

// A stretch of a group, both by index.
struct StretchTask {
  size_t group;
  int64_t stretch;
};

// The stretches of all groups. Heads of the cache come after one another for each stretch: their rows are
// neighbours in memory, often on one page.
std::vector<StretchTask> stretch_tasks(const RowGroup* groups, size_t num_groups) {
  std::vector<StretchTask> tasks;
  for (size_t begin = 0; begin < num_groups;) {
    size_t end = begin + 1;
    while (end < num_groups && groups[end].request == groups[begin].request &&
           groups[end].rows.begin == groups[begin].rows.begin) {
      ++end;
    }
    for (int64_t stretch = 0; stretch < groups[begin].num_stretches(); ++stretch) {
      for (size_t group = begin; group < end; ++group) tasks.push_back({group, stretch});
    }
    begin = end;
  }
  return tasks;
}

// A task is one stretch of one group; the thread that finishes a group's last stretch merges them all.
void attend_by_stretch(ThreadPool& pool, const GroupAttention& attention, const RowGroup* groups,
                       size_t num_groups, int64_t num_floats) {
  std::vector<std::atomic<int64_t>> num_unfinished(num_groups);
  for (size_t index = 0; index < num_groups; ++index) num_unfinished[index] = groups[index].num_stretches();
  const std::vector<StretchTask> tasks = stretch_tasks(groups, num_groups);
  thread_local GrowOnlyBuffer buffer;
  const int64_t num_tasks = static_cast<int64_t>(tasks.size());
  float* states = buffer.at_least(num_tasks * num_floats);
  pool.parallel_for(num_tasks, [&](int64_t task) {
    const auto [index, stretch] = tasks[static_cast<size_t>(task)];
    const RowGroup& group = groups[index];
    const int64_t first_state = group.first_stretch - groups[0].first_stretch;
    const auto state_of = [&](int64_t of_stretch) {
      return attention.state_at(states + (first_state + of_stretch) * num_floats, group);
    };
    attention.attend(group, attention.gather(group), stretch, state_of(stretch));
    if (num_unfinished[index].fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    for (int64_t next = 1; next < group.num_stretches(); ++next) {
      attention.merge(group, state_of(next), state_of(0));
    }
    attention.write(group, state_of(0));
  });
}

// All groups of a call: several to a thread, or divided into stretches if they are few.
void attend_groups(ThreadPool& pool, const GroupAttention& attention, const std::vector<RowGroup>& groups,
                   int64_t value_width) {
  const int64_t num_groups = static_cast<int64_t>(groups.size());
  const int64_t num_floats = state_floats(value_width);
  if (num_groups >= kGroupsPerThread * pool.num_threads()) {
    pool.parallel_for(num_groups, [&](int64_t index) {
      thread_local GrowOnlyBuffer buffer;
      float* memory = buffer.at_least(2 * num_floats);
      const RowGroup& group = groups[static_cast<size_t>(index)];
      const AttentionState state = attention.state_at(memory, group);
      const AttentionState next = attention.state_at(memory + num_floats, group);
      const float* queries = attention.gather(group);
      attention.attend(group, queries, 0, state);
      for (int64_t stretch = 1; stretch < group.num_stretches(); ++stretch) {
        attention.attend(group, queries, stretch, next);
        attention.merge(group, next, state);
      }
      attention.write(group, state);
    });
    return;
  }

  const auto end_of = [&](size_t begin) {
    const int64_t most = kMostStateBytes / state_bytes(value_width);
    int64_t num_stretches = groups[begin].num_stretches();
    for (++begin; begin < groups.size(); ++begin) {
      num_stretches += groups[begin].num_stretches();
      if (num_stretches > most) break;
    }
    return begin;
  };
  for (size_t begin = 0; begin < groups.size();) {
    const size_t end = end_of(begin);
    attend_by_stretch(pool, attention, &groups[begin], end - begin, num_floats);
    begin = end;
  }
}

void check_indptr(const char* name, const int32_t* indptr, int64_t num_requests, int64_t total) {
  const std::string what = name;
  if (indptr[0] != 0)
    throw std::invalid_argument(what + "[0] is " + std::to_string(indptr[0]) + "; expected 0");
  for (int64_t r = 0; r < num_requests; ++r) {
    if (indptr[r + 1] < indptr[r]) {
      throw std::invalid_argument(what + "[" + std::to_string(r + 1) + "] is " +
                                  std::to_string(indptr[r + 1]) +
                                  "; expected at least the entry before it, " + std::to_string(indptr[r]));
    }
  }
  if (indptr[num_requests] != total) {
    throw std::invalid_argument(what + "[" + std::to_string(num_requests) + "] is " +
                                std::to_string(indptr[num_requests]) + "; expected " + std::to_string(total));
  }
}

}  // namespace

void PagedBatch::check() const {
  check_indptr("query_indptr", query_indptr, num_requests, num_tokens);
  check_indptr("kv_indptr", kv_indptr, num_requests, num_indices);
  const int64_t num_blocks = num_slots / block_tokens;
  for (int64_t i = 0; i < num_indices; ++i) {
    if (kv_indices[i] < 0 || kv_indices[i] >= num_blocks) {
      throw std::invalid_argument("kv_indices[" + std::to_string(i) + "] is " +
                                  std::to_string(kv_indices[i]) + "; expected 0 to " +
                                  std::to_string(num_blocks - 1));
    }
  }
  for (int64_t request = 0; request < num_requests; ++request) {
    const int64_t capacity = (kv_indptr[request + 1] - kv_indptr[request]) * block_tokens;
    for (int64_t token = query_indptr[request]; token < query_indptr[request + 1]; ++token) {
      if (positions[token] < 0 || positions[token] >= capacity) {
        throw std::invalid_argument("positions[" + std::to_string(token) + "] is " +
                                    std::to_string(positions[token]) + "; expected 0 to " +
                                    std::to_string(capacity - 1) + ", what the blocks of request " +
                                    std::to_string(request) + " hold");
      }
    }
  }
}

void paged_attention(ThreadPool& pool, const Kernels* kernels, const AttentionQuery& query,
                     const CacheRows& keys, const CacheRows& values, const PagedBatch& batch,
                     const AttentionShape& shape, float* out, const ChosenPositions* chosen) {
  BALLAST_CHECK(chosen == nullptr || shape.window == 0);
  BALLAST_CHECK(keys.plane.is_half == values.plane.is_half);
  const GroupAttention attention(attention_kernels(kernels), query, keys, values, batch, shape, out, chosen);
  const std::vector<RowGroup> groups =
      chosen == nullptr ? group_rows(batch, shape) : group_by_token(batch, shape, chosen->counts);
  attend_groups(pool, attention, groups, shape.value_width);
}

void listed_attention(ThreadPool& pool, const Kernels* kernels, const AttentionQuery& query,
                      const ListedRows& listed, const PagedBatch& batch, const AttentionShape& shape,
                      float* out) {
  BALLAST_CHECK(shape.window == 0 && shape.num_kv_heads == 1);
  const CacheRows none{};
  const GroupAttention attention(attention_kernels(kernels), query, none, none, batch, shape, out, nullptr,
                                 &listed);
  attend_groups(pool, attention, group_by_token(batch, shape, listed.counts), shape.value_width);
}

int64_t attention_states_bytes(int64_t num_heads, int64_t num_kv_heads, int64_t value_width,
                               int64_t num_tokens, int64_t num_positions, int num_threads) {
  // Most where each token is of another request.
  const int64_t a_token = num_kv_heads * Chunks(num_heads / num_kv_heads, kGroupRows).count();
  const int64_t num_groups = std::min(num_tokens * a_token, kGroupsPerThread * num_threads - 1);
  const int64_t by_group = Chunks(num_positions, kStretchPositions).count() * state_bytes(value_width);
  return std::max(by_group, std::min(num_groups * by_group, kMostStateBytes));
}

}  // namespace ballast
