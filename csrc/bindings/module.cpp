// The extension ballast._core: one submodule per topic, each registered by its own file.
#include <pybind11/pybind11.h>

#include "base/check.h"

void bind_sched(pybind11::module_ m);
void bind_numa(pybind11::module_ m);
void bind_pool(pybind11::module_ m);
void bind_matrix(pybind11::module_ m);
void bind_experts(pybind11::module_ m);
void bind_ops(pybind11::module_ m);
void bind_recurrence(pybind11::module_ m);
void bind_model(pybind11::module_ m);
void bind_handoff(pybind11::module_ m);
void bind_sampling(pybind11::module_ m);

PYBIND11_MODULE(_core, m) {
  m.doc() = "Ballast's compiled part: scheduler and CPU kernels.";
  pybind11::register_exception<ballast::InvariantError>(m, "InvariantError", PyExc_RuntimeError);
  bind_sched(m.def_submodule("sched", "Continuous batching over a paged, shared KV space."));
  bind_numa(m.def_submodule("numa", "Where threads run and memory lies."));
  pybind11::module_ kernels = m.def_submodule("kernels", "CPU kernels over GGUF blocks.");
  bind_pool(kernels);
  bind_matrix(kernels);
  bind_experts(kernels);
  bind_ops(kernels);
  bind_recurrence(kernels);
  bind_model(m.def_submodule("model", "The forward pass on the CPU."));
  bind_handoff(m.def_submodule("handoff", "Routed experts, computed as a device asks for them."));
  bind_sampling(m.def_submodule("sampling", "Logits to tokens."));
}
