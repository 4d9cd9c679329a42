// The CPU/GPU hand-off for Python: a model's routed layers, the buffers of their activations and choices, and
// the signal words.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/views.h"
#include "moe/experts.h"
#include "moe/handoff.h"

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

// The data that the thread uses, declared before the thread so that it outlives it.
class ExpertWorker {
 public:
  ExpertWorker(ThreadPool& pool, const std::vector<ExpertsView>& layers, py::array inputs, py::array ids,
               py::array weights, py::array results, py::array submitted, py::array done, double limit_s,
               bool adopt_thread)
      : layers_(layers), max_tokens_(inputs.ndim() == 0 ? 0 : inputs.shape(0)) {
    const int64_t hidden = layers.empty() ? Dim::kAny : layers.front().experts.hidden_width();
    const int64_t num_layers = static_cast<int64_t>(layers.size());
    const float* x = read<float>("inputs", inputs, {{"T"}, {"D", hidden}});
    const int32_t* chosen = read<int32_t>("ids", ids, {{"T", max_tokens_}, {"k"}});
    const int64_t num_chosen = ids.shape(1);
    const float* shares = read<float>("weights", weights, {{"T", max_tokens_}, {"k", num_chosen}});
    float* out = write<float>("results", results, {{"T", max_tokens_}, {"D", hidden}});
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      if (layers[layer].experts.hidden_width() != hidden) {
        throw py::value_error("layers[" + std::to_string(layer) + "] has experts of width " +
                              std::to_string(layers[layer].experts.hidden_width()) + "; expected " +
                              std::to_string(hidden));
      }
    }
    const Handoff::Words seen{words("submitted", submitted, num_layers), words("done", done, num_layers),
                              num_layers};
    buffers_ = {inputs, ids, weights, results, submitted, done};
    handoff_ = std::make_unique<Handoff>(
        seen, pool,
        [this, &pool, x, chosen, shares, num_chosen, out](int64_t index, int64_t num_tokens) {
          const Experts& experts = layers_[static_cast<size_t>(index)].experts;
          const int64_t num_read = experts.forward(pool, x, num_tokens, chosen, shares, num_chosen, out);
          bytes_read_.fetch_add(num_read * experts.expert_bytes(), std::memory_order_relaxed);
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

  bool finish(double timeout_s) {
    const py::gil_scoped_release unlocked;
    return handoff_->finish(milliseconds(timeout_s));
  }

  int64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }

 private:
  const std::vector<ExpertsView> layers_;
  const int64_t max_tokens_;
  std::vector<py::array> buffers_;
  std::atomic<int64_t> bytes_read_{0};
  std::unique_ptr<Handoff> handoff_;
};

}  // namespace

void bind_handoff(py::module_ m) {
  using py::arg;
  py::class_<ExpertWorker>(m, "ExpertWorker")
      .def(py::init([](ThreadPool& pool, const std::vector<ExpertsView>& layers, py::array inputs,
                       py::array ids, py::array weights, py::array results, py::array submitted,
                       py::array done, double limit_s, bool adopt_thread) {
             return std::make_unique<ExpertWorker>(
                 pool, layers, std::move(inputs), std::move(ids), std::move(weights), std::move(results),
                 std::move(submitted), std::move(done), limit_s, adopt_thread);
           }),
           py::keep_alive<1, 2>(), arg("pool"), arg("layers"), py::kw_only(), arg("inputs"), arg("ids"),
           arg("weights"), arg("results"), arg("submitted"), arg("done"), arg("limit_s"), arg("adopt_thread"))
      .def("begin", &ExpertWorker::begin, arg("num_tokens"))
      .def("finish", &ExpertWorker::finish, arg("timeout_s"))
      .def_property_readonly("bytes_read", &ExpertWorker::bytes_read);
}
