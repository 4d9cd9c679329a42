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
#include "model/deepseek.h"

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

struct AttentionView {
  AttentionWeights weights;
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

AttentionView make_attention(const py::array& norm, const std::optional<MatrixView>& query_down,
                             const std::optional<py::array>& query_norm, const MatrixView& query_up,
                             const MatrixView& kv_a, const py::array& kv_a_norm, const HeadMatrixView& k_up,
                             const HeadMatrixView& v_up, const MatrixView& output) {
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
  return {{copy_vector("norm", norm), std::move(down), query_up.matrix, kv_a.matrix,
           copy_vector("kv_a_norm", kv_a_norm), k_up.matrix(), v_up.matrix(), output.matrix},
          std::move(owners)};
}

LayerView make_layer(const AttentionView& attention, const py::array& ffn_norm,
                     const std::optional<ExpertsView>& mlp, const std::optional<MatrixView>& router,
                     const std::optional<py::array>& bias, const std::optional<ExpertsView>& experts) {
  if (router.has_value() != experts.has_value()) {
    throw py::value_error("router and experts go together; expected both or neither");
  }
  LayerView layer{{attention.weights, copy_vector("ffn_norm", ffn_norm), std::nullopt, std::nullopt}, {}};
  layer.owners.add(attention.owners);
  if (mlp) {
    layer.weights.every_token = mlp->experts;
    layer.owners.add(*mlp);
  }
  if (experts) {
    layer.weights.routed = RoutedWeights{
        router->matrix, bias ? copy_vector("bias", *bias) : std::vector<float>(), experts->experts};
    layer.owners.add(*router);
    layer.owners.add(*experts);
  }
  return layer;
}

// The model with everything that it borrows.
class ModelView {
 public:
  ModelView(ThreadPool& pool, const std::string& isa, const DeepseekShape& shape, const MatrixView& embedding,
            const std::vector<LayerView>& layers, const py::array& output_norm, const MatrixView& output,
            const py::array& rope_cos, const py::array& rope_sin, std::vector<py::array> kv_layers,
            int64_t block_tokens)
      : block_tokens_(block_tokens),
        model_(pool, find_isa(isa), shape, gather(embedding, layers, output_norm, output),
               read_table(shape, rope_cos, rope_sin), read_cache(shape, kv_layers)) {
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

  RopeTable read_table(const DeepseekShape& shape, const py::array& cos, const py::array& sin) {
    const Dim pairs{"rope_dim / 2", shape.rope_dim / 2};
    const float* cosines = read<float>("rope_cos", cos, {{"positions"}, pairs});
    const int64_t num_positions = cos.shape(0);
    const float* sines = read<float>("rope_sin", sin, {{"positions", num_positions}, pairs});
    owners_.add(cos);
    owners_.add(sin);
    return {cosines, sines, num_positions};
  }

  KvCache read_cache(const DeepseekShape& shape, std::vector<py::array>& layers) {
    KvCache cache{{}, layers.empty() ? 0 : layers[0].shape(0)};
    for (py::array& layer : layers) {
      cache.layers.push_back(
          write<float>("kv_layers", layer, {{"slots", cache.num_slots}, {"L", shape.latent_dim()}}));
      owners_.add(layer);
    }
    return cache;
  }

  Owners owners_;
  const int64_t block_tokens_;
  DeepseekModel model_;
};

}  // namespace

void bind_model(py::module_ m) {
  using py::arg;
  py::class_<DeepseekShape>(m, "Shape")
      .def(py::init([](int64_t hidden, int64_t num_heads, int64_t kv_lora_rank, int64_t nope_dim,
                       int64_t rope_dim, int64_t v_dim, float rms_eps, float softmax_scale,
                       int64_t num_experts, int64_t num_experts_used, int64_t num_groups,
                       int64_t num_groups_used, bool sigmoid, bool group_score_top2, bool normalize_weights,
                       float weights_scale) {
             return DeepseekShape{hidden,
                                  num_heads,
                                  kv_lora_rank,
                                  nope_dim,
                                  rope_dim,
                                  v_dim,
                                  rms_eps,
                                  softmax_scale,
                                  {num_experts, num_experts_used, num_groups, num_groups_used, sigmoid,
                                   group_score_top2, normalize_weights, weights_scale}};
           }),
           py::kw_only(), arg("hidden"), arg("num_heads"), arg("kv_lora_rank"), arg("nope_dim"),
           arg("rope_dim"), arg("v_dim"), arg("rms_eps"), arg("softmax_scale"), arg("num_experts"),
           arg("num_experts_used"), arg("num_groups"), arg("num_groups_used"), arg("sigmoid"),
           arg("group_score_top2"), arg("normalize_weights"), arg("weights_scale"));
  py::class_<HeadMatrixView>(m, "HeadMatrix")
      .def(py::init([](const MatrixView& matrix, int64_t head_stride, int64_t row_offset, bool transposed) {
             return HeadMatrixView{matrix, head_stride, row_offset, transposed};
           }),
           arg("matrix"), arg("head_stride"), arg("row_offset"), arg("transposed"));
  py::class_<AttentionView>(m, "Attention")
      .def(py::init(&make_attention), py::kw_only(), arg("norm"), arg("query_down").none(true),
           arg("query_norm").none(true), arg("query_up"), arg("kv_a"), arg("kv_a_norm"), arg("k_up"),
           arg("v_up"), arg("output"));
  py::class_<LayerView>(m, "Layer")
      .def(py::init(&make_layer), py::kw_only(), arg("attention"), arg("ffn_norm"), arg("mlp").none(true),
           arg("router").none(true), arg("bias").none(true), arg("experts").none(true));
  py::class_<ModelView>(m, "DeepseekModel")
      .def(py::init<ThreadPool&, const std::string&, const DeepseekShape&, const MatrixView&,
                    const std::vector<LayerView>&, const py::array&, const MatrixView&, const py::array&,
                    const py::array&, std::vector<py::array>, int64_t>(),
           py::keep_alive<1, 2>(), arg("pool"), py::kw_only(), arg("isa"), arg("shape"), arg("embedding"),
           arg("layers"), arg("output_norm"), arg("output"), arg("rope_cos"), arg("rope_sin"),
           arg("kv_layers"), arg("block_tokens"))
      .def("forward", &ModelView::forward, py::kw_only(), arg("token_ids"), arg("positions"), arg("slots"),
           arg("query_indptr"), arg("kv_indptr"), arg("kv_indices"), arg("sampled"), arg("alive"),
           arg("alive_every_s"))
      .def_property_readonly("expert_bytes_read", &ModelView::expert_bytes_read);
}
