// The forward pass for Python: weights go in once, a step's arrays each call.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/views.h"
#include "cpu/dispatch.h"
#include "model/transformer.h"

namespace py = pybind11;
using namespace ballast;

namespace {

// The Python memory that borrowed weights lie in.
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

struct IndexerView {
  Indexer weights;
  Owners owners;
};

struct AttentionView {
  Attention weights;
  Owners owners;
};

struct LayerView {
  LayerWeights weights;
  Owners owners;
};

std::vector<float> copy_vector(const char* name, const py::array& array) {
  const float* data = read<float>(name, array, {{"n"}});
  return {data, data + array.size()};
}

std::vector<float> copy_optional(const char* name, const std::optional<py::array>& array) {
  return array ? copy_vector(name, *array) : std::vector<float>();
}

IndexerView make_indexer(const MatrixView& query_up, const MatrixView& key, const py::array& key_norm,
                         const py::array& key_shift, const MatrixView& head_weights) {
  Owners owners;
  for (const MatrixView* view : {&query_up, &key, &head_weights}) owners.add(*view);
  return {Indexer{query_up.matrix, key.matrix, copy_vector("key_norm", key_norm),
                  copy_vector("key_shift", key_shift), head_weights.matrix},
          std::move(owners)};
}

AttentionView make_latent(const LatentShape& shape, const std::optional<MatrixView>& query_down,
                          const std::optional<py::array>& query_norm, const MatrixView& query_up,
                          const MatrixView& kv_a, const py::array& kv_a_norm, const HeadMatrixView& k_up,
                          const HeadMatrixView& v_up, const MatrixView& output,
                          const std::optional<IndexerShape>& sparse,
                          const std::optional<IndexerView>& indexer) {
  if (indexer && !sparse) throw py::value_error("indexer needs `sparse`, its shape");
  if (query_down.has_value() != query_norm.has_value()) {
    throw py::value_error("query_down and query_norm go together; expected both or neither");
  }
  std::optional<QueryDown> down;
  Owners owners;
  if (query_down) {
    down = QueryDown{query_down->matrix, copy_vector("query_norm", *query_norm)};
    owners.add(*query_down);
  }
  for (const MatrixView* view : {&query_up, &kv_a, &k_up.view, &v_up.view, &output}) owners.add(*view);
  std::optional<SparseChoice> choice;
  if (sparse) choice = SparseChoice{*sparse, std::nullopt};
  if (indexer) {
    choice->indexer = indexer->weights;
    owners.add(indexer->owners);
  }
  return {LatentAttention{shape, std::move(down), query_up.matrix, kv_a.matrix,
                          copy_vector("kv_a_norm", kv_a_norm), k_up.matrix(), v_up.matrix(), output.matrix,
                          std::move(choice)},
          std::move(owners)};
}

AttentionView make_grouped(const GroupedShape& shape, const MatrixView& query, const MatrixView& key,
                           const MatrixView& value, const std::optional<py::array>& query_bias,
                           const std::optional<py::array>& key_bias,
                           const std::optional<py::array>& value_bias,
                           const std::optional<py::array>& query_norm,
                           const std::optional<py::array>& key_norm, const MatrixView& output) {
  Owners owners;
  for (const MatrixView* view : {&query, &key, &value, &output}) owners.add(*view);
  return {GroupedAttention{shape, query.matrix, key.matrix, value.matrix,
                           copy_optional("query_bias", query_bias), copy_optional("key_bias", key_bias),
                           copy_optional("value_bias", value_bias), copy_optional("query_norm", query_norm),
                           copy_optional("key_norm", key_norm), output.matrix},
          std::move(owners)};
}

LayerView make_layer(const py::array& attention_norm, const AttentionView& attention,
                     const py::array& ffn_norm, const std::optional<ExpertsView>& mlp,
                     const std::optional<MatrixView>& router, const std::optional<py::array>& bias,
                     const std::optional<ExpertsView>& experts) {
  if (router.has_value() != experts.has_value()) {
    throw py::value_error("router and experts go together; expected both or neither");
  }
  LayerView layer{{copy_vector("attention_norm", attention_norm), attention.weights,
                   copy_vector("ffn_norm", ffn_norm), std::nullopt, std::nullopt},
                  {}};
  layer.owners.add(attention.owners);
  if (mlp) {
    layer.weights.every_token = mlp->experts;
    layer.owners.add(*mlp);
  }
  if (experts) {
    layer.weights.routed = RoutedWeights{router->matrix, copy_optional("bias", bias), experts->experts};
    layer.owners.add(*router);
    layer.owners.add(*experts);
  }
  return layer;
}

// The model with everything that it borrows.
class ModelView {
 public:
  ModelView(ThreadPool& pool, const std::string& isa, const ModelShape& shape, const MatrixView& embedding,
            const std::vector<LayerView>& layers, const py::array& output_norm, const MatrixView& output,
            const py::array& rope_cos, const py::array& rope_sin,
            std::vector<std::vector<py::array>> kv_layers, int64_t block_tokens)
      : block_tokens_(block_tokens),
        model_(pool, find_isa(isa), shape, gather(embedding, layers, output_norm, output),
               read_table(shape, rope_cos, rope_sin), read_cache(layers, kv_layers)) {
    if (block_tokens < 1) {
      throw py::value_error("block_tokens is " + std::to_string(block_tokens) + "; expected 1 or more");
    }
  }

  int64_t expert_bytes_read() const { return model_.expert_bytes_read(); }

  py::array_t<float> forward(const py::array& token_ids, const py::array& positions, const py::array& slots,
                             const py::array& query_indptr, const py::array& kv_indptr,
                             const py::array& kv_indices, const py::array& sampled, const py::function& alive,
                             double alive_every_s) {
    const int32_t* ids = read<int32_t>("token_ids", token_ids, {{"T"}});
    const int64_t num_tokens = token_ids.shape(0);
    const int32_t* query_ends = read<int32_t>("query_indptr", query_indptr, {{"requests + 1"}});
    const int64_t num_requests = query_indptr.shape(0) - 1;
    if (num_requests < 0) throw py::value_error("query_indptr is empty; expected requests + 1 entries");
    const Step step{ids,
                    read<int32_t>("slots", slots, {{"T", num_tokens}}),
                    {num_requests, num_tokens, model_.num_slots(), kv_indices.size(), block_tokens_,
                     query_ends, read<int32_t>("positions", positions, {{"T", num_tokens}}),
                     read<int32_t>("kv_indptr", kv_indptr, {{"requests + 1", num_requests + 1}}),
                     read<int32_t>("kv_indices", kv_indices, {{"blocks"}})},
                    read<int64_t>("sampled", sampled, {{"S"}}),
                    sampled.shape(0)};
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

  ModelWeights gather(const MatrixView& embedding, const std::vector<LayerView>& layers,
                      const py::array& output_norm, const MatrixView& output) {
    ModelWeights weights{embedding.matrix, {}, copy_vector("output_norm", output_norm), output.matrix};
    owners_.add(embedding);
    owners_.add(output);
    for (const LayerView& layer : layers) {
      weights.layers.push_back(layer.weights);
      owners_.add(layer.owners);
    }
    return weights;
  }

  RopeTable read_table(const ModelShape& shape, const py::array& cos, const py::array& sin) {
    const Dim pairs{"rope_dim / 2", shape.rope_dim / 2};
    const float* cosines = read<float>("rope_cos", cos, {{"positions"}, pairs});
    const int64_t num_positions = cos.shape(0);
    const float* sines = read<float>("rope_sin", sin, {{"positions", num_positions}, pairs});
    owners_.add(cos);
    owners_.add(sin);
    return {cosines, sines, num_positions};
  }

  KvCache read_cache(const std::vector<LayerView>& layers, std::vector<std::vector<py::array>>& kv_layers) {
    const bool has_planes = !kv_layers.empty() && !kv_layers[0].empty() && kv_layers[0][0].ndim() > 0;
    KvCache cache{{}, has_planes ? kv_layers[0][0].shape(0) : 0};
    for (size_t i = 0; i < kv_layers.size(); ++i) {
      LayerPlanes planes;
      const std::vector<int64_t> widths =
          i < layers.size() ? plane_widths(layers[i].weights.attention) : std::vector<int64_t>();
      for (size_t plane = 0; plane < kv_layers[i].size(); ++plane) {
        const int64_t width = plane < widths.size() ? widths[plane] : Dim::kAny;
        planes.push_back(
            write<float>("kv_layers", kv_layers[i][plane], {{"slots", cache.num_slots}, {"width", width}}));
        owners_.add(kv_layers[i][plane]);
      }
      cache.layers.push_back(std::move(planes));
    }
    return cache;
  }

  Owners owners_;
  const int64_t block_tokens_;
  Transformer model_;
};

}  // namespace

void bind_model(py::module_ m) {
  using py::arg;
  py::class_<ModelShape>(m, "Shape")
      .def(py::init([](int64_t hidden, int64_t rope_dim, float rms_eps, int64_t num_experts,
                       int64_t num_experts_used, int64_t num_groups, int64_t num_groups_used, bool sigmoid,
                       bool group_score_top2, bool normalize_weights, float weights_scale) {
             return ModelShape{hidden,
                               rope_dim,
                               rms_eps,
                               {num_experts, num_experts_used, num_groups, num_groups_used, sigmoid,
                                group_score_top2, normalize_weights, weights_scale}};
           }),
           py::kw_only(), arg("hidden"), arg("rope_dim"), arg("rms_eps"), arg("num_experts"),
           arg("num_experts_used"), arg("num_groups"), arg("num_groups_used"), arg("sigmoid"),
           arg("group_score_top2"), arg("normalize_weights"), arg("weights_scale"));
  py::class_<LatentShape>(m, "LatentShape")
      .def(py::init([](int64_t num_heads, int64_t kv_lora_rank, int64_t nope_dim, int64_t rope_dim,
                       int64_t v_dim, float softmax_scale) {
             return LatentShape{num_heads, kv_lora_rank, nope_dim, rope_dim, v_dim, softmax_scale};
           }),
           py::kw_only(), arg("num_heads"), arg("kv_lora_rank"), arg("nope_dim"), arg("rope_dim"),
           arg("v_dim"), arg("softmax_scale"));
  py::class_<GroupedShape>(m, "GroupedShape")
      .def(py::init([](int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, int64_t v_dim,
                       int64_t rope_dim, float softmax_scale) {
             return GroupedShape{num_heads, num_kv_heads, head_dim, v_dim, rope_dim, softmax_scale};
           }),
           py::kw_only(), arg("num_heads"), arg("num_kv_heads"), arg("head_dim"), arg("v_dim"),
           arg("rope_dim"), arg("softmax_scale"));
  py::class_<HeadMatrixView>(m, "HeadMatrix")
      .def(py::init([](const MatrixView& matrix, int64_t head_stride, int64_t row_offset, bool transposed) {
             return HeadMatrixView{matrix, head_stride, row_offset, transposed};
           }),
           arg("matrix"), arg("head_stride"), arg("row_offset"), arg("transposed"));
  py::class_<IndexerShape>(m, "IndexerShape")
      .def(py::init([](int64_t num_heads, int64_t key_width, int64_t top_k, bool pairs_apart) {
             return IndexerShape{num_heads, key_width, top_k, pairs_apart};
           }),
           py::kw_only(), arg("num_heads"), arg("key_width"), arg("top_k"), arg("pairs_apart"));
  py::class_<IndexerView>(m, "Indexer")
      .def(py::init(&make_indexer), py::kw_only(), arg("query_up"), arg("key"), arg("key_norm"),
           arg("key_shift"), arg("head_weights"));
  py::class_<AttentionView>(m, "Attention")
      .def_static("latent", &make_latent, py::kw_only(), arg("shape"), arg("query_down").none(true),
                  arg("query_norm").none(true), arg("query_up"), arg("kv_a"), arg("kv_a_norm"), arg("k_up"),
                  arg("v_up"), arg("output"), arg("sparse").none(true), arg("indexer").none(true))
      .def_static("grouped", &make_grouped, py::kw_only(), arg("shape"), arg("query"), arg("key"),
                  arg("value"), arg("query_bias").none(true), arg("key_bias").none(true),
                  arg("value_bias").none(true), arg("query_norm").none(true), arg("key_norm").none(true),
                  arg("output"));
  py::class_<LayerView>(m, "Layer")
      .def(py::init(&make_layer), py::kw_only(), arg("attention_norm"), arg("attention"), arg("ffn_norm"),
           arg("mlp").none(true), arg("router").none(true), arg("bias").none(true),
           arg("experts").none(true));
  py::class_<ModelView>(m, "Transformer")
      .def(py::init<ThreadPool&, const std::string&, const ModelShape&, const MatrixView&,
                    const std::vector<LayerView>&, const py::array&, const MatrixView&, const py::array&,
                    const py::array&, std::vector<std::vector<py::array>>, int64_t>(),
           py::keep_alive<1, 2>(), arg("pool"), py::kw_only(), arg("isa"), arg("shape"), arg("embedding"),
           arg("layers"), arg("output_norm"), arg("output"), arg("rope_cos"), arg("rope_sin"),
           arg("kv_layers"), arg("block_tokens"))
      .def("forward", &ModelView::forward, py::kw_only(), arg("token_ids"), arg("positions"), arg("slots"),
           arg("query_indptr"), arg("kv_indptr"), arg("kv_indices"), arg("sampled"), arg("alive"),
           arg("alive_every_s"))
      .def_property_readonly("expert_bytes_read", &ModelView::expert_bytes_read);
}
