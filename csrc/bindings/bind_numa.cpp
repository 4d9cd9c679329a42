// Topology, thread placement and location of memory for Python.
#include <pybind11/eval.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "numa/memory.h"
#include "numa/placement.h"
#include "numa/topology.h"

namespace py = pybind11;
using namespace ballast;

namespace {

Node make_node(int index, std::vector<int> cpus, const std::vector<std::vector<int>>& cores,
               bool memory_allowed) {
  Node node{index, std::move(cpus), {}, memory_allowed};
  for (const std::vector<int>& core : cores) {
    if (core.empty()) throw py::value_error("a core without a CPU that may be used; leave it out");
    node.cores.push_back({core});
  }
  return node;
}

std::vector<std::vector<int>> cores_of(const Node& node) {
  std::vector<std::vector<int>> cores;
  for (const Core& core : node.cores) cores.push_back(core.cpus);
  return cores;
}

std::vector<AddressRange> to_ranges(const std::vector<std::pair<uint64_t, uint64_t>>& pairs) {
  std::vector<AddressRange> ranges;
  for (const auto& [begin, num_bytes] : pairs) ranges.push_back({begin, num_bytes});
  return ranges;
}

}  // namespace

void bind_numa(py::module_ m) {
  using py::arg;
  m.attr("UNKNOWN_NODE") = kUnknownNode;
  m.attr("ANY_CPU") = kAnyCpu;
  m.attr("Range") = py::eval("tuple[int, int]");
  py::class_<Node>(m, "Node")
      .def(py::init(&make_node), arg("index"), arg("cpus"), arg("cores"), arg("memory_allowed") = true)
      .def_readonly("index", &Node::index)
      .def_readonly("cpus", &Node::cpus)
      .def_property_readonly("cores", &cores_of)
      .def_readonly("memory_allowed", &Node::memory_allowed);
  py::class_<Topology>(m, "Topology")
      .def(py::init([](std::vector<Node> nodes) { return Topology{std::move(nodes)}; }), arg("nodes"))
      .def_readonly("nodes", &Topology::nodes)
      .def_property_readonly("num_cores", &Topology::num_cores)
      .def_property_readonly("num_cpus", &Topology::num_cpus)
      .def("node_of", &Topology::node_of, arg("cpu"));
  py::class_<NodeThreads>(m, "NodeThreads")
      .def(py::init([](int node, std::vector<int> cpus) { return NodeThreads{node, std::move(cpus)}; }),
           arg("node"), arg("cpus"))
      .def_readonly("node", &NodeThreads::node)
      .def_readonly("cpus", &NodeThreads::cpus);
  py::class_<Placement>(m, "Placement")
      .def(py::init([](std::vector<NodeThreads> nodes) { return Placement{std::move(nodes)}; }), arg("nodes"))
      .def_readonly("nodes", &Placement::nodes)
      .def_property_readonly("num_threads", &Placement::num_threads)
      .def_property_readonly("num_unpinned", &Placement::num_unpinned);

  m.def(
      "read_topology",
      [](const std::string& root, std::optional<std::vector<int>> cpus) {
        return read_topology(root, cpus ? *cpus : allowed_cpus());
      },
      arg("root") = "", arg("cpus") = py::none());
  m.def("parse_cpu_list", &parse_cpu_list, arg("text"));
  m.def("place_threads", &place_threads, arg("topology"), arg("num_threads"));
  m.def("mempolicy_available", &mempolicy_available);
  m.def(
      "bytes_per_node",
      [](const std::string& numa_maps, const std::string& maps,
         const std::vector<std::pair<uint64_t, uint64_t>>& ranges) {
        const py::gil_scoped_release unlocked;
        return bytes_per_node(numa_maps, maps, to_ranges(ranges));
      },
      arg("numa_maps"), arg("maps"), arg("ranges"));
}
