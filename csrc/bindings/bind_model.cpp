// The forward pass for Python: weights go in once, a step's arrays each call.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "bindings/arrays.h"
#include "bindings/gating.h"
#include "bindings/state_rows.h"
#include "bindings/views.h"
#include "cpu/dispatch.h"
#include "model/transformer.h"

namespace py = pybind11;
using namespace ballast;

namespace {

// The Python objects that own the memory of borrowed weights.
class Owners {
 public:
  void add(const MatrixView& view) {
    if (view.owner) arrays_.push_back(*view.owner);
  }
  void add(const ExpertsView& view) { arrays_.insert(arrays_.end(), view.owners.begin(), view.owners.end()); }
  void add(const py::array& array) { arrays_.push_back(array); }
  void add(const Owners& others) {
    arrays_.insert(arrays_.end(), others.arrays_.begin(), others.arrays_.end());
  }

 private:
  std::vector<py::array> arrays_;
};

struct HeadMatrixView {
  MatrixView view;
  int64_t head_stride;
  int64_t row_offset;
  bool transposed;

  HeadMatrix matrix() const { return {view.matrix, head_stride, row_offset, transposed}; }
};

struct LayerView {
  LayerInput input;
  Owners owners;
};

std::vector<float> copy_vector(const char* name, const py::array& array) {
  const float* data = read<float>(name, array, {{"n"}});
  return {data, data + array.size()};
}

TensorsByRole read_tensors(const py::dict& tensors, Owners& owners) {
  TensorsByRole found;
  for (const auto& [key, value] : tensors) {
    const std::string role = py::cast<std::string>(key);
    const auto add = [&](LayerTensor tensor, const auto& owner) {
      found.emplace(role, std::move(tensor));
      owners.add(owner);
    };
    if (py::isinstance<MatrixView>(value)) {
      const auto& view = py::cast<const MatrixView&>(value);
      add(view.matrix, view);
    } else if (py::isinstance<HeadMatrixView>(value)) {
      const auto& view = py::cast<const HeadMatrixView&>(value);
      add(view.matrix(), view.view);
    } else if (py::isinstance<ExpertsView>(value)) {
      const auto& view = py::cast<const ExpertsView&>(value);
      add(view.experts, view);
    } else {
      found.emplace(role, copy_vector(role.c_str(), py::cast<py::array>(value)));
    }
  }
  return found;
}

LayerView make_layer(const MixerShape& mixer, const py::dict& tensors, size_t rope,
                     const std::optional<NgramShape>& ngram) {
  LayerView layer{{mixer, {}, rope, ngram}, {}};
  layer.input.tensors = read_tensors(tensors, layer.owners);
  return layer;
}

// Cosines, sines and, if the rotation has them, factors of queries by position.
using RopeArrays = std::tuple<py::array, py::array, std::optional<py::array>>;

// The model with everything that it borrows.
class ModelView {
 public:
  ModelView(ThreadPool& pool, const std::string& isa, const ModelShape& shape, const MatrixView& embedding,
            const std::vector<LayerView>& layers, const py::dict& output_tensors, const MatrixView& output,
            const std::vector<RopeArrays>& ropes, std::vector<std::vector<py::array>> kv_layers,
            int64_t block_tokens, std::vector<std::vector<py::array>> state_layers)
      : block_tokens_(block_tokens),
        model_(make(pool, isa, shape, gather(embedding, layers, output_tensors, output), ropes, kv_layers,
                    state_layers)) {
    if (block_tokens < 1) {
      throw py::value_error("block_tokens is " + std::to_string(block_tokens) + "; expected 1 or more");
    }
  }

  int64_t expert_bytes_read() const { return model_.expert_bytes_read(); }

  py::array_t<float> forward(const py::array& token_ids, const py::array& positions, const py::array& slots,
                             const py::array& query_indptr, const py::array& kv_indptr,
                             const py::array& kv_indices, const py::array& sampled,
                             const std::optional<py::array>& window_slots,
                             const std::optional<py::array>& window_indices,
                             const std::optional<StateArrays>& states,
                             const std::optional<py::array>& earlier_ids, const py::function& alive,
                             double alive_every_s) {
    const int32_t* ids = read<int32_t>("token_ids", token_ids, {{"T"}});
    const int64_t num_tokens = token_ids.shape(0);
    const int32_t* query_ends = read<int32_t>("query_indptr", query_indptr, {{"requests + 1"}});
    const int64_t num_requests = query_indptr.shape(0) - 1;
    if (num_requests < 0) throw py::value_error("query_indptr is empty; expected requests + 1 entries");
    const PagedBatch batch{num_requests,
                           num_tokens,
                           model_.num_slots(),
                           kv_indices.size(),
                           block_tokens_,
                           query_ends,
                           read<int32_t>("positions", positions, {{"T", num_tokens}}),
                           read<int32_t>("kv_indptr", kv_indptr, {{"requests + 1", num_requests + 1}}),
                           read<int32_t>("kv_indices", kv_indices, {{"blocks"}})};
    const int32_t* rows = read<int32_t>("slots", slots, {{"T", num_tokens}});
    PagedBatch of_windows = batch;
    of_windows.num_slots = model_.num_window_slots();
    if (window_indices) {
      of_windows.kv_indices =
          read<int32_t>("window_indices", *window_indices, {{"blocks", kv_indices.size()}});
    }
    const Dim num_earlier{"3 * requests", kEarlierTokens * num_requests};
    const Step step{ids,
                    rows,
                    batch,
                    window_slots ? read<int32_t>("window_slots", *window_slots, {{"T", num_tokens}}) : rows,
                    of_windows,
                    read_states(states, num_requests, query_ends),
                    read<int64_t>("sampled", sampled, {{"S"}}),
                    sampled.shape(0),
                    earlier_ids ? read<int32_t>("earlier_ids", *earlier_ids, {num_earlier}) : nullptr};
    py::array_t<float> logits({step.num_sampled, model_.num_logits()});
    float* to = logits.mutable_data();
    const py::gil_scoped_release unlocked;
    model_.forward(step, to, Heartbeat(alive, alive_every_s));
    return logits;
  }

 private:
  // Calls Python when the last call, or the step's begin, is a while ago: each waits for the GIL, which a
  // busy server holds for up to 5 ms.
  class Heartbeat {
   public:
    Heartbeat(const py::function& alive, double every_s) : alive_(alive), every_(every_s) {}
    void operator()() {
      const Clock::time_point now = Clock::now();
      if (now - last_ < every_) return;
      last_ = now;
      const py::gil_scoped_acquire locked;
      alive_();
    }

   private:
    using Clock = std::chrono::steady_clock;
    const py::function& alive_;
    const std::chrono::duration<double> every_;
    Clock::time_point last_ = Clock::now();
  };

  ModelInput gather(const MatrixView& embedding, const std::vector<LayerView>& layers,
                    const py::dict& output_tensors, const MatrixView& output) {
    ModelInput input{embedding.matrix, {}, read_tensors(output_tensors, owners_), output.matrix};
    owners_.add(embedding);
    owners_.add(output);
    for (const LayerView& layer : layers) {
      input.layers.push_back(layer.input);
      owners_.add(layer.owners);
    }
    return input;
  }

  Transformer make(ThreadPool& pool, const std::string& isa, const ModelShape& shape, const ModelInput& input,
                   const std::vector<RopeArrays>& ropes, std::vector<std::vector<py::array>>& kv_layers,
                   std::vector<std::vector<py::array>>& state_layers) {
    ModelWeights weights(input, shape);
    std::vector<RopeTable> tables;
    for (const auto& [cos, sin, query_scale] : ropes) tables.push_back(read_table(cos, sin, query_scale));
    KvCache cache = read_cache(weights, kv_layers);
    add_states(weights, state_layers, cache);
    return Transformer(pool, find_isa(isa), shape, std::move(weights), tables, cache);
  }

  RopeTable read_table(const py::array& cos, const py::array& sin,
                       const std::optional<py::array>& query_scale) {
    const float* cosines = read<float>("cosines of ropes", cos, {{"positions"}, {"rope_dim / 2"}});
    const int64_t num_positions = cos.shape(0);
    const int64_t num_pairs = cos.shape(1);
    const float* sines =
        read<float>("sines of ropes", sin, {{"positions", num_positions}, {"rope_dim / 2", num_pairs}});
    owners_.add(cos);
    owners_.add(sin);
    const float* scales = nullptr;
    if (query_scale) {
      scales = read<float>("query scales of ropes", *query_scale, {{"positions", num_positions}});
      owners_.add(*query_scale);
    }
    return {cosines, sines, num_positions, 2 * num_pairs, scales};
  }

  KvCache read_cache(const ModelWeights& weights, std::vector<std::vector<py::array>>& kv_layers) {
    const auto has_window = [&](size_t layer) {
      return layer < weights.layers.size() && weights.layers[layer].attention->has_window();
    };
    const auto has_none = [&](size_t layer) {
      return layer < weights.layers.size() && weights.layers[layer].attention->plane_widths().empty();
    };
    // Slots of the first layer with or without a window; if there is none, those of the first layer with
    // planes.
    const auto slots_of = [&](bool windowed) -> int64_t {
      size_t layer = 0;
      while (layer < kv_layers.size() && (has_none(layer) || has_window(layer) != windowed)) ++layer;
      if (layer == kv_layers.size()) layer = 0;
      while (layer + 1 < kv_layers.size() && has_none(layer)) ++layer;
      const bool has_planes =
          !kv_layers.empty() && !kv_layers[layer].empty() && kv_layers[layer][0].ndim() > 0;
      return has_planes ? kv_layers[layer][0].shape(0) : 0;
    };
    KvCache cache{{}, slots_of(false), slots_of(true), 1};
    for (size_t i = 0; i < kv_layers.size(); ++i) {
      LayerPlanes planes;
      const int64_t num_slots = has_window(i) ? cache.num_window_slots : cache.num_slots;
      const std::vector<int64_t> widths =
          i < weights.layers.size() ? weights.layers[i].attention->plane_widths() : std::vector<int64_t>();
      for (size_t plane = 0; plane < kv_layers[i].size(); ++plane) {
        const int64_t width = plane < widths.size() ? widths[plane] : Dim::kAny;
        const py::array& array = kv_layers[i][plane];
        planes.push_back(write_plane("kv_layers", array, {{"slots", num_slots}, {"width", width}}));
        owners_.add(array);
      }
      cache.layers.push_back({std::move(planes), {}});
    }
    return cache;
  }

  // The states of each layer, all with the same number of slots.
  void add_states(const ModelWeights& weights, std::vector<std::vector<py::array>>& state_layers,
                  KvCache& cache) {
    std::optional<int64_t> num_slots;
    for (size_t i = 0; i < std::min(state_layers.size(), cache.layers.size()); ++i) {
      const std::vector<int64_t> floats =
          i < weights.layers.size() ? weights.layers[i].state_floats() : std::vector<int64_t>();
      for (size_t state = 0; state < state_layers[i].size(); ++state) {
        py::array& array = state_layers[i][state];
        const int64_t width = state < floats.size() ? floats[state] : Dim::kAny;
        float* data = write<float>("state_layers", array,
                                   {{"state slots", num_slots.value_or(Dim::kAny)}, {"floats", width}});
        num_slots = array.shape(0);
        cache.layers[i].states.push_back(data);
        owners_.add(array);
      }
    }
    cache.num_state_slots = num_slots.value_or(1);
  }

  Owners owners_;
  const int64_t block_tokens_;
  Transformer model_;
};

}  // namespace

void bind_model(py::module_ m) {
  using py::arg;
  py::class_<ModelShape>(m, "Shape")
      .def(
          py::init([](int64_t hidden, float rms_eps, int64_t num_experts, int64_t num_experts_used,
                      int64_t num_groups, int64_t num_groups_used, const std::string& gating,
                      bool group_score_top2, bool normalize_weights, float weights_scale,
                      int64_t num_stream_rows, int64_t stream_rounds, float stream_eps, int64_t stream_rank) {
            return ModelShape{hidden,
                              rms_eps,
                              {num_experts, num_experts_used, num_groups, num_groups_used, gating_of(gating),
                               group_score_top2, normalize_weights, weights_scale},
                              {num_stream_rows, stream_rounds, stream_eps, stream_rank}};
          }),
          py::kw_only(), arg("hidden"), arg("rms_eps"), arg("num_experts"), arg("num_experts_used"),
          arg("num_groups"), arg("num_groups_used"), arg("gating"), arg("group_score_top2"),
          arg("normalize_weights"), arg("weights_scale"), arg("num_stream_rows") = 1,
          arg("stream_rounds") = 0, arg("stream_eps") = 0.0f, arg("stream_rank") = 0);
  py::class_<IndexerShape>(m, "IndexerShape")
      .def(py::init([](int64_t num_heads, int64_t key_width, int64_t top_k, bool pairs_apart, int64_t pool,
                       bool averages) {
             return IndexerShape{num_heads, key_width, top_k, pairs_apart, pool, averages};
           }),
           py::kw_only(), arg("num_heads"), arg("key_width"), arg("top_k"), arg("pairs_apart"),
           arg("pool") = 1, arg("averages") = false);
  py::class_<LatentShape>(m, "LatentShape")
      .def(py::init([](int64_t num_heads, int64_t kv_lora_rank, int64_t nope_dim, int64_t rope_dim,
                       int64_t v_dim, float softmax_scale, const std::optional<IndexerShape>& index,
                       bool rotates) {
             return LatentShape{num_heads, kv_lora_rank,  nope_dim, rope_dim,
                                v_dim,     softmax_scale, index,    rotates};
           }),
           py::kw_only(), arg("num_heads"), arg("kv_lora_rank"), arg("nope_dim"), arg("rope_dim"),
           arg("v_dim"), arg("softmax_scale"), arg("index").none(true), arg("rotates"));
  py::class_<GroupedShape>(m, "GroupedShape")
      .def(py::init([](int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, int64_t v_dim,
                       int64_t rope_dim, float softmax_scale, bool norms_all_heads, int64_t window,
                       float value_scale, bool softplus_gates, bool gates_entries, bool gates_queries,
                       const std::optional<IndexerShape>& index) {
             return GroupedShape{num_heads,     num_kv_heads,    head_dim, v_dim,       rope_dim,
                                 softmax_scale, norms_all_heads, window,   value_scale, softplus_gates,
                                 gates_entries, gates_queries,   index};
           }),
           py::kw_only(), arg("num_heads"), arg("num_kv_heads"), arg("head_dim"), arg("v_dim"),
           arg("rope_dim"), arg("softmax_scale"), arg("norms_all_heads"), arg("window"), arg("value_scale"),
           arg("softplus_gates"), arg("gates_entries"), arg("gates_queries"), arg("index") = py::none());
  py::class_<DeltaNetShape>(m, "DeltaNetShape")
      .def(py::init([](int64_t num_heads, int64_t num_key_heads, int64_t key_dim, int64_t v_dim,
                       int64_t conv_taps, bool heads_alternate, bool sigmoid_gates) {
             return DeltaNetShape{num_heads, num_key_heads,   key_dim,      v_dim,
                                  conv_taps, heads_alternate, sigmoid_gates};
           }),
           py::kw_only(), arg("num_heads"), arg("num_key_heads"), arg("key_dim"), arg("v_dim"),
           arg("conv_taps"), arg("heads_alternate"), arg("sigmoid_gates") = false);
  py::class_<NgramShape>(m, "NgramShape")
      .def(py::init([](std::vector<uint64_t> multipliers, std::vector<int64_t> head_offsets,
                       std::vector<int64_t> head_sizes, int32_t end_id, int64_t conv_taps) {
             return NgramShape{std::move(multipliers), std::move(head_offsets), std::move(head_sizes), end_id,
                               conv_taps};
           }),
           py::kw_only(), arg("multipliers"), arg("head_offsets"), arg("head_sizes"), arg("end_id"),
           arg("conv_taps"));
  py::class_<KimiDeltaShape>(m, "KimiDeltaShape")
      .def(py::init([](int64_t num_heads, int64_t head_dim, int64_t conv_taps, float lower_bound) {
             return KimiDeltaShape{num_heads, head_dim, conv_taps, lower_bound};
           }),
           py::kw_only(), arg("num_heads"), arg("head_dim"), arg("conv_taps"), arg("lower_bound") = 0.0f);
  py::class_<IndexShape>(m, "EntryIndexShape")
      .def(py::init([](int64_t num_heads, int64_t key_width, int64_t top_k) {
             return IndexShape{num_heads, key_width, top_k};
           }),
           py::kw_only(), arg("num_heads"), arg("key_width"), arg("top_k"));
  py::class_<CompressedShape>(m, "CompressedShape")
      .def(py::init([](int64_t num_heads, int64_t head_dim, int64_t rope_dim, int64_t window, int64_t ratio,
                       int64_t output_groups, const std::optional<IndexShape>& index) {
             return CompressedShape{num_heads, head_dim, rope_dim, window, ratio, output_groups, index};
           }),
           py::kw_only(), arg("num_heads"), arg("head_dim"), arg("rope_dim"), arg("window"), arg("ratio"),
           arg("output_groups"), arg("index").none(true));
  py::class_<HeadMatrixView>(m, "HeadMatrix")
      .def(py::init([](const MatrixView& matrix, int64_t head_stride, int64_t row_offset, bool transposed) {
             return HeadMatrixView{matrix, head_stride, row_offset, transposed};
           }),
           arg("matrix"), arg("head_stride"), arg("row_offset"), arg("transposed"));
  py::class_<LayerView>(m, "Layer")
      .def(py::init(&make_layer), py::kw_only(), arg("mixer"), arg("tensors"), arg("rope"),
           arg("ngram") = py::none());
  py::class_<ModelView>(m, "Transformer")
      .def(py::init<ThreadPool&, const std::string&, const ModelShape&, const MatrixView&,
                    const std::vector<LayerView>&, const py::dict&, const MatrixView&,
                    const std::vector<RopeArrays>&, std::vector<std::vector<py::array>>, int64_t,
                    std::vector<std::vector<py::array>>>(),
           py::keep_alive<1, 2>(), arg("pool"), py::kw_only(), arg("isa"), arg("shape"), arg("embedding"),
           arg("layers"), arg("output_tensors"), arg("output"), arg("ropes"), arg("kv_layers"),
           arg("block_tokens"), arg("state_layers") = std::vector<std::vector<py::array>>())
      .def("forward", &ModelView::forward, py::kw_only(), arg("token_ids"), arg("positions"), arg("slots"),
           arg("query_indptr"), arg("kv_indptr"), arg("kv_indices"), arg("sampled"),
           arg("window_slots") = py::none(), arg("window_indices") = py::none(), arg("states") = py::none(),
           arg("earlier_ids") = py::none(), arg("alive"), arg("alive_every_s"))
      .def_property_readonly("expert_bytes_read", &ModelView::expert_bytes_read);
}
