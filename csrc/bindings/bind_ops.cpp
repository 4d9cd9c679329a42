// Operations for Python: check the arrays, release the GIL, call.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "bindings/arrays.h"
#include "bindings/gating.h"
#include "bindings/packing.h"
#include "bindings/views.h"
#include "cpu/dispatch.h"
#include "moe/router.h"
#include "ops/attention/paged_attention.h"
#include "ops/attention/position_choice.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/pointwise.h"
#include "ops/rope.h"
#include "threads/thread_pool.h"

namespace py = pybind11;
using namespace ballast;

namespace {

void bind_linear(ThreadPool& pool, const py::array& x, const MatrixView& weight, py::array out) {
  const float* from = read<float>("x", x, {{"T"}, {"cols", weight.matrix.cols()}});
  const int64_t num_tokens = x.shape(0);
  float* to = write<float>("out", out, {{"T", num_tokens}, {"rows", weight.matrix.rows()}});
  check_disjoint("out", out, "x", x);
  check_packed_for(weight.matrix, {1, 0, 0, weight.matrix.rows()}, PanelRows::kAsStored);
  const py::gil_scoped_release unlocked;
  linear(pool, from, num_tokens, weight.matrix, to);
}

void bind_head_linear(ThreadPool& pool, const py::array& x, const MatrixView& weight, int64_t head_stride,
                      int64_t row_offset, py::array out) {
  const float* from = read<float>("x", x, {{"T"}, {"H"}, {"cols", weight.matrix.cols()}});
  const int64_t num_tokens = x.shape(0);
  float* to = write<float>("out", out, {{"T", num_tokens}, {"H", x.shape(1)}, {"N"}});
  check_disjoint("out", out, "x", x);
  const HeadRows heads = head_rows(weight.matrix, x.shape(1), head_stride, row_offset, out.shape(2));
  check_packed_for(weight.matrix, heads, PanelRows::kAsStored);
  const py::gil_scoped_release unlocked;
  head_linear(pool, from, num_tokens, weight.matrix, heads, to);
}

void bind_head_linear_transposed(ThreadPool& pool, const py::array& x, const MatrixView& weight,
                                 int64_t head_stride, int64_t row_offset, py::array out) {
  const float* from = read<float>("x", x, {{"T"}, {"H"}, {"N"}});
  const int64_t num_tokens = x.shape(0);
  float* to =
      write<float>("out", out, {{"T", num_tokens}, {"H", x.shape(1)}, {"cols", weight.matrix.cols()}});
  check_disjoint("out", out, "x", x);
  const HeadRows heads = head_rows(weight.matrix, x.shape(1), head_stride, row_offset, x.shape(2));
  check_packed_for(weight.matrix, heads, PanelRows::kTransposed);
  const py::gil_scoped_release unlocked;
  head_linear_transposed(pool, from, num_tokens, weight.matrix, heads, to);
}

void bind_rms_norm(const py::array& x, const py::array& weight, float eps, py::array out) {
  const float* from = read<float>("x", x, {{"T"}, {"D"}});
  const int64_t num_tokens = x.shape(0);
  const int64_t width = x.shape(1);
  const float* scales = read<float>("weight", weight, {{"D", width}});
  float* to = write<float>("out", out, {{"T", num_tokens}, {"D", width}});
  const py::gil_scoped_release unlocked;
  rms_norm(from, num_tokens, width, scales, eps, to);
}

void bind_rope(py::array x, const py::array& cos, const py::array& sin) {
  float* data = write<float>("x", x, {{"T"}, {"H"}, {"R"}});
  const int64_t num_tokens = x.shape(0);
  const int64_t num_heads = x.shape(1);
  const int64_t width = x.shape(2);
  if (width % 2 != 0) throw py::value_error("x is " + describe(x) + "; expected an even last dimension");
  const float* c = read<float>("cos", cos, {{"T", num_tokens}, {"R / 2", width / 2}});
  const float* s = read<float>("sin", sin, {{"T", num_tokens}, {"R / 2", width / 2}});
  const py::gil_scoped_release unlocked;
  rope_interleaved(data, num_tokens, num_heads, width, c, s);
}

void bind_rope_half_split(py::array x, const py::array& cos, const py::array& sin) {
  float* data = write<float>("x", x, {{"T"}, {"H"}, {"width"}});
  const int64_t num_tokens = x.shape(0);
  const float* c = read<float>("cos", cos, {{"T", num_tokens}, {"pairs"}});
  const float* s = read<float>("sin", sin, {{"T", num_tokens}, {"pairs", cos.shape(1)}});
  const int64_t rope_width = 2 * cos.shape(1);
  if (rope_width > x.shape(2)) {
    throw py::value_error("cos is " + describe(cos) + "; expected at most " + std::to_string(x.shape(2) / 2) +
                          " pairs, half the width of x");
  }
  const py::gil_scoped_release unlocked;
  rope_half_split(data, num_tokens, x.shape(1), x.shape(2), rope_width, c, s);
}

PagedBatch read_batch(int64_t num_tokens, int64_t num_slots, int64_t block_tokens,
                      const py::array& query_indptr, const py::array& positions, const py::array& kv_indptr,
                      const py::array& kv_indices) {
  if (block_tokens < 1) {
    throw py::value_error("block_tokens is " + std::to_string(block_tokens) + "; expected 1 or more");
  }
  const int32_t* query_ends = read<int32_t>("query_indptr", query_indptr, {{"requests + 1"}});
  const int64_t num_requests = query_indptr.shape(0) - 1;
  if (num_requests < 0) throw py::value_error("query_indptr is empty; expected requests + 1 entries");
  return {num_requests,
          num_tokens,
          num_slots,
          kv_indices.size(),
          block_tokens,
          query_ends,
          read<int32_t>("positions", positions, {{"T", num_tokens}}),
          read<int32_t>("kv_indptr", kv_indptr, {{"requests + 1", num_requests + 1}}),
          read<int32_t>("kv_indices", kv_indices, {{"blocks"}})};
}

void bind_gqa_attention(ThreadPool& pool, const py::array& query, const py::array& keys,
                        const py::array& values, int64_t block_tokens, const py::array& query_indptr,
                        const py::array& positions, const py::array& kv_indptr, const py::array& kv_indices,
                        float scale, py::array out, const std::string& isa, int64_t window,
                        const std::optional<py::array>& sinks) {
  const float* q = read<float>("query", query, {{"T"}, {"H"}, {"K"}});
  const int64_t key_width = query.shape(2);
  const CachePlane k = read_plane("keys", keys, {{"slots"}, {"kv heads"}, {"K", key_width}});
  const int64_t num_slots = keys.shape(0), num_kv_heads = keys.shape(1);
  const CachePlane v =
      read_plane("values", values, {{"slots", num_slots}, {"kv heads", num_kv_heads}, {"V"}});
  if (k.is_half != v.is_half) {
    throw py::value_error("values are " + describe(values) + "; expected the type of keys, " +
                          describe(keys));
  }
  const float* s = sinks ? read<float>("sinks", *sinks, {{"H", query.shape(1)}}) : nullptr;
  const AttentionShape shape{query.shape(1), num_kv_heads, key_width, values.shape(2), scale, window, s};
  if (window < 0) throw py::value_error("window is " + std::to_string(window) + "; expected 0 or more");
  if (num_kv_heads < 1 || shape.num_heads % num_kv_heads != 0) {
    throw py::value_error("keys have " + std::to_string(num_kv_heads) +
                          " heads; expected a part of query's " + std::to_string(shape.num_heads));
  }
  const PagedBatch batch =
      read_batch(query.shape(0), num_slots, block_tokens, query_indptr, positions, kv_indptr, kv_indices);
  float* to =
      write<float>("out", out, {{"T", batch.num_tokens}, {"H", shape.num_heads}, {"V", shape.value_width}});
  check_disjoint("out", out, "query", query);
  check_disjoint("out", out, "keys", keys);
  check_disjoint("out", out, "values", values);
  const Kernels* kernels = find_isa(isa);
  const py::gil_scoped_release unlocked;
  batch.check();
  paged_attention(pool, kernels, {{q, key_width, key_width}, {}}, {k, num_kv_heads * key_width, key_width},
                  {v, num_kv_heads * shape.value_width, shape.value_width}, batch, shape, to);
}

// Positions that a caller chose, each within what its token sees.
ChosenPositions read_chosen(const PagedBatch& batch, const py::array& chosen, const py::array& num_chosen) {
  const int32_t* rows = read<int32_t>("chosen", chosen, {{"T", batch.num_tokens}, {"K"}});
  const int32_t* counts = read<int32_t>("num_chosen", num_chosen, {{"T", batch.num_tokens}});
  const int64_t stride = chosen.shape(1);
  for (int64_t token = 0; token < batch.num_tokens; ++token) {
    if (counts[token] < 1 || counts[token] > stride) {
      throw py::value_error("num_chosen[" + std::to_string(token) + "] is " + std::to_string(counts[token]) +
                            "; expected 1 to " + std::to_string(stride));
    }
    for (int64_t i = 0; i < counts[token]; ++i) {
      const int32_t position = rows[token * stride + i];
      if (position >= 0 && position <= batch.positions[token]) continue;
      throw py::value_error("chosen[" + std::to_string(token) + ", " + std::to_string(i) + "] is " +
                            std::to_string(position) + "; expected 0 to " +
                            std::to_string(batch.positions[token]));
    }
  }
  return {rows, counts, stride};
}

void bind_choose_positions(ThreadPool& pool, const py::array& query, const py::array& weights,
                           const py::array& keys, int64_t block_tokens, const py::array& query_indptr,
                           const py::array& positions, const py::array& kv_indptr,
                           const py::array& kv_indices, py::array chosen, py::array num_chosen,
                           const std::string& isa) {
  const float* q = read<float>("query", query, {{"T"}, {"H"}, {"K"}});
  const int64_t num_tokens = query.shape(0), num_heads = query.shape(1), width = query.shape(2);
  const float* w = read<float>("weights", weights, {{"T", num_tokens}, {"H", num_heads}});
  const CachePlane k = read_plane("keys", keys, {{"slots"}, {"K", width}});
  const PagedBatch batch =
      read_batch(num_tokens, keys.shape(0), block_tokens, query_indptr, positions, kv_indptr, kv_indices);
  int32_t* rows = write<int32_t>("chosen", chosen, {{"T", num_tokens}, {"top_k"}});
  int32_t* counts = write<int32_t>("num_chosen", num_chosen, {{"T", num_tokens}});
  const int64_t top_k = chosen.shape(1);
  if (top_k < 1) throw py::value_error("chosen is " + describe(chosen) + "; expected at least 1 a token");
  const Kernels* kernels = find_isa(isa);
  const py::gil_scoped_release unlocked;
  batch.check();
  choose_positions(pool, kernels, q, w, {k, width, 0}, batch, {num_heads, width, top_k}, rows, counts);
}

void bind_mla_attention(ThreadPool& pool, const py::array& query, const py::array& kv_cache,
                        int64_t block_tokens, const py::array& query_indptr, const py::array& positions,
                        const py::array& kv_indptr, const py::array& kv_indices, int64_t value_dim,
                        float scale, py::array out, const std::string& isa,
                        const std::optional<py::array>& chosen, const std::optional<py::array>& num_chosen) {
  const float* q = read<float>("query", query, {{"T"}, {"H"}, {"L"}});
  const int64_t num_tokens = query.shape(0);
  const AttentionShape shape{query.shape(1), 1, query.shape(2), value_dim, scale};
  const CachePlane cache = read_plane("kv_cache", kv_cache, {{"slots"}, {"L", shape.key_width}});
  if (value_dim < 1 || value_dim > shape.key_width) {
    throw py::value_error("value_dim is " + std::to_string(value_dim) + "; expected 1 to query's L, " +
                          std::to_string(shape.key_width));
  }
  const PagedBatch batch =
      read_batch(num_tokens, kv_cache.shape(0), block_tokens, query_indptr, positions, kv_indptr, kv_indices);
  float* to = write<float>("out", out, {{"T", num_tokens}, {"H", shape.num_heads}, {"value_dim", value_dim}});
  check_disjoint("out", out, "query", query);
  check_disjoint("out", out, "kv_cache", kv_cache);
  const Kernels* kernels = find_isa(isa);
  const CacheRows rows{cache, shape.key_width, 0};
  batch.check();
  if (chosen.has_value() != num_chosen.has_value()) {
    throw py::value_error("chosen and num_chosen go together; expected both or neither");
  }
  std::optional<ChosenPositions> seen;
  if (chosen) seen = read_chosen(batch, *chosen, *num_chosen);
  const py::gil_scoped_release unlocked;
  paged_attention(pool, kernels, {{q, shape.key_width, shape.key_width}, {}}, rows, rows, batch, shape, to,
                  seen ? &*seen : nullptr);
}

void bind_silu_mul(const py::array& gate, const py::array& up, py::array out) {
  const float* g = read<float>("gate", gate, {{"T"}, {"I"}});
  const float* u = read<float>("up", up, {{"T", gate.shape(0)}, {"I", gate.shape(1)}});
  float* to = write<float>("out", out, {{"T", gate.shape(0)}, {"I", gate.shape(1)}});
  const int64_t num = gate.size();
  const py::gil_scoped_release unlocked;
  silu_mul(g, u, num, to);
}

void bind_route(const py::array& logits, const std::optional<py::array>& bias, const std::string& gating,
                int64_t num_groups, int64_t num_groups_used, bool group_score_top2, bool normalize,
                float scale, py::array ids, py::array weights) {
  const float* from = read<float>("logits", logits, {{"T"}, {"E"}});
  const int64_t num_tokens = logits.shape(0);
  const int64_t num_experts = logits.shape(1);
  int32_t* to_ids = write<int32_t>("ids", ids, {{"T", num_tokens}, {"k"}});
  const int64_t num_chosen = ids.shape(1);
  float* to_weights = write<float>("weights", weights, {{"T", num_tokens}, {"k", num_chosen}});
  const float* biases = bias ? read<float>("bias", *bias, {{"E", num_experts}}) : nullptr;
  const RoutingRule rule{num_experts,       num_chosen,       num_groups, num_groups_used,
                         gating_of(gating), group_score_top2, normalize,  scale};
  const py::gil_scoped_release unlocked;
  rule.check();
  route(from, num_tokens, biases, rule, to_ids, to_weights);
}

}  // namespace

void bind_ops(py::module_ m) {
  using py::arg;
  m.def("linear", &bind_linear, arg("pool"), arg("x"), arg("weight"), arg("out"));
  m.def("head_linear", &bind_head_linear, arg("pool"), arg("x"), arg("weight"), arg("head_stride"),
        arg("row_offset"), arg("out"));
  m.def("head_linear_transposed", &bind_head_linear_transposed, arg("pool"), arg("x"), arg("weight"),
        arg("head_stride"), arg("row_offset"), arg("out"));
  m.def("rms_norm", &bind_rms_norm, arg("x"), arg("weight"), arg("eps"), arg("out"));
  m.def("rope_interleaved", &bind_rope, arg("x"), arg("cos"), arg("sin"));
  m.def("rope_half_split", &bind_rope_half_split, arg("x"), arg("cos"), arg("sin"));
  m.def("mla_attention", &bind_mla_attention, arg("pool"), arg("query"), arg("kv_cache"), arg("block_tokens"),
        arg("query_indptr"), arg("positions"), arg("kv_indptr"), arg("kv_indices"), arg("value_dim"),
        arg("scale"), arg("out"), py::kw_only(), arg("isa"), arg("chosen") = py::none(),
        arg("num_chosen") = py::none());
  m.def("choose_positions", &bind_choose_positions, arg("pool"), arg("query"), arg("weights"), arg("keys"),
        arg("block_tokens"), arg("query_indptr"), arg("positions"), arg("kv_indptr"), arg("kv_indices"),
        arg("chosen"), arg("num_chosen"), py::kw_only(), arg("isa"));
  m.def("position_choice_nbytes", &position_choice_bytes, py::kw_only(), arg("num_heads"), arg("key_width"),
        arg("num_tokens"), arg("num_positions"), arg("num_threads"));
  m.def("gqa_attention", &bind_gqa_attention, arg("pool"), arg("query"), arg("keys"), arg("values"),
        arg("block_tokens"), arg("query_indptr"), arg("positions"), arg("kv_indptr"), arg("kv_indices"),
        arg("scale"), arg("out"), py::kw_only(), arg("isa"), arg("window") = 0, arg("sinks") = py::none());
  m.def("attention_states_nbytes", &attention_states_bytes, py::kw_only(), arg("num_heads"),
        arg("num_kv_heads"), arg("value_dim"), arg("num_tokens"), arg("num_positions"), arg("num_threads"));
  m.def("silu_mul", &bind_silu_mul, arg("gate"), arg("up"), arg("out"));
  m.def("route", &bind_route, arg("logits"), arg("bias").none(true), py::kw_only(), arg("gating"),
        arg("num_groups"), arg("num_groups_used"), arg("group_score_top2"), arg("normalize"), arg("scale"),
        arg("ids"), arg("weights"));
}
