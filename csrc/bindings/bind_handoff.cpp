// The hand-off for Python: a model's routed layers, the buffers that their activations pass through, the
// words.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/views.h"
#include "moe/handoff.h"
#include "moe/routed.h"

namespace py = pybind11;
using namespace ballast;

namespace {

static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

std::atomic<uint32_t>* words(const char* name, py::array& array, int64_t num_layers) {
  return reinterpret_cast<std::atomic<uint32_t>*>(write<uint32_t>(name, array, {{"layers", num_layers}}));
}

// Everything that the thread touches, declared before the thread so that it outlives it.
class ExpertWorker {
 public:
  using Layer = std::pair<ExpertsView, std::optional<py::array>>;

  ExpertWorker(ThreadPool& pool, const std::vector<Layer>& layers, const RoutingRule& rule, py::array inputs,
               py::array logits, py::array results, py::array submitted, py::array done, double limit_s,
               bool adopt_thread)
      : routed_(pool, rule), max_tokens_(inputs.ndim() == 0 ? 0 : inputs.shape(0)) {
    rule.check();
    const int64_t hidden = layers.empty() ? Dim::kAny : layers.front().first.experts.hidden_width();
    const int64_t num_layers = static_cast<int64_t>(layers.size());
    const float* x = read<float>("inputs", inputs, {{"T"}, {"D", hidden}});
    const float* scores = read<float>("logits", logits, {{"T", max_tokens_}, {"E", rule.num_experts}});
    float* out = write<float>("results", results, {{"T", max_tokens_}, {"D", hidden}});
    for (const auto& [view, bias] : layers) {
      if (view.experts.num_experts() != rule.num_experts || view.experts.hidden_width() != hidden) {
        throw py::value_error("layers[" + std::to_string(layers_.size()) + "] has " +
                              std::to_string(view.experts.num_experts()) + " experts of width " +
                              std::to_string(view.experts.hidden_width()) + "; expected " +
                              std::to_string(rule.num_experts) + " of width " + std::to_string(hidden));
      }
      const float* biases = bias ? read<float>("bias", *bias, {{"E", rule.num_experts}}) : nullptr;
      layers_.push_back(
          {view, biases ? std::vector<float>(biases, biases + rule.num_experts) : std::vector<float>()});
    }
    const Handoff::Words seen{words("submitted", submitted, num_layers), words("done", done, num_layers),
                              num_layers};
    buffers_ = {inputs, logits, results, submitted, done};
    handoff_ = std::make_unique<Handoff>(
        seen,
        [this, x, scores, out](int64_t index, int64_t num_tokens) {
          const auto& [view, bias] = layers_[static_cast<size_t>(index)];
          routed_.forward(view.experts, bias.empty() ? nullptr : bias.data(), scores, x, num_tokens, out);
        },
        milliseconds(limit_s),
        [&pool, adopt_thread] {
          if (adopt_thread) pool.adopt_caller();
        });
  }

  ~ExpertWorker() {
    const py::gil_scoped_release unlocked;
    handoff_.reset();
  }

  void begin(int64_t num_tokens) {
    if (num_tokens > max_tokens_) {
      throw py::value_error("num_tokens is " + std::to_string(num_tokens) + "; expected at most " +
                            std::to_string(max_tokens_));
    }
    const py::gil_scoped_release unlocked;
    handoff_->begin(num_tokens);
  }

  bool finish(double patience_s) {
    const py::gil_scoped_release unlocked;
    return handoff_->finish(milliseconds(patience_s));
  }

  int64_t bytes_read() const { return routed_.bytes_read(); }

 private:
  RoutedExperts routed_;
  const int64_t max_tokens_;
  std::vector<std::pair<ExpertsView, std::vector<float>>> layers_;
  std::vector<py::array> buffers_;
  std::unique_ptr<Handoff> handoff_;
};

}  // namespace

void bind_handoff(py::module_ m) {
  using py::arg;
  py::class_<ExpertWorker>(m, "ExpertWorker")
      .def(py::init([](ThreadPool& pool, const std::vector<ExpertWorker::Layer>& layers, int64_t num_experts,
                       int64_t num_experts_used, int64_t num_groups, int64_t num_groups_used, bool sigmoid,
                       bool group_score_top2, bool normalize_weights, float weights_scale, py::array inputs,
                       py::array logits, py::array results, py::array submitted, py::array done,
                       double limit_s, bool adopt_thread) {
             const RoutingRule rule{num_experts, num_experts_used, num_groups,        num_groups_used,
                                    sigmoid,     group_score_top2, normalize_weights, weights_scale};
             return std::make_unique<ExpertWorker>(pool, layers, rule, std::move(inputs), std::move(logits),
                                                   std::move(results), std::move(submitted), std::move(done),
                                                   limit_s, adopt_thread);
           }),
           py::keep_alive<1, 2>(), arg("pool"), arg("layers"), py::kw_only(), arg("num_experts"),
           arg("num_experts_used"), arg("num_groups"), arg("num_groups_used"), arg("sigmoid"),
           arg("group_score_top2"), arg("normalize_weights"), arg("weights_scale"), arg("inputs"),
           arg("logits"), arg("results"), arg("submitted"), arg("done"), arg("limit_s"), arg("adopt_thread"))
      .def("begin", &ExpertWorker::begin, arg("num_tokens"))
      .def("finish", &ExpertWorker::finish, arg("patience_s"))
      .def_property_readonly("bytes_read", &ExpertWorker::bytes_read);
}
