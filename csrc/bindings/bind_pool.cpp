// The thread pool of the kernels, for Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <tuple>
#include <vector>

#include "numa/placement.h"
#include "threads/read_speed.h"
#include "threads/thread_pool.h"

namespace py = pybind11;
using namespace ballast;

namespace {

// ThreadPool::KeepAwake as a context.
class KeepAwake {
 public:
  explicit KeepAwake(ThreadPool& pool) : pool_(pool) {}
  void enter() { scope_.emplace(pool_); }
  void exit(const py::args&) { scope_.reset(); }

 private:
  ThreadPool& pool_;
  std::optional<ThreadPool::KeepAwake> scope_;
};

using Seconds = std::tuple<double, double, double, double>;

std::vector<Seconds> stop_recording(ThreadPool& pool) {
  const auto seconds = [](int64_t nanoseconds) { return 1e-9 * static_cast<double>(nanoseconds); };
  std::vector<Seconds> loops;
  for (const LoopTimes& times : pool.stop_recording()) {
    loops.emplace_back(seconds(times.opened), seconds(times.first_joined), seconds(times.last_joined),
                       seconds(times.over));
  }
  return loops;
}

}  // namespace

void bind_pool(py::module_ m) {
  using py::arg;
  py::class_<ThreadPool>(m, "ThreadPool")
      .def(py::init<int>(), arg("num_threads"))
      .def(py::init<const Placement&>(), arg("placement"))
      .def("adopt_caller", &ThreadPool::adopt_caller)
      .def_property_readonly("num_nodes", &ThreadPool::num_nodes)
      .def_property_readonly("pin_refusal", &ThreadPool::pin_refusal)
      .def_property_readonly("num_threads", &ThreadPool::num_threads)
      .def("start_recording", &ThreadPool::start_recording)
      .def("stop_recording", &stop_recording);
  py::class_<KeepAwake>(m, "KeepAwake")
      .def(py::init<ThreadPool&>(), py::keep_alive<1, 2>(), arg("pool"))
      .def("__enter__", &KeepAwake::enter)
      .def("__exit__", &KeepAwake::exit);
  m.def("measure_read_speed", &measure_read_speed, arg("pool"), arg("num_bytes"),
        py::call_guard<py::gil_scoped_release>());
}
