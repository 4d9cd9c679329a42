// The machine's NUMA nodes, cores and CPUs as far as this process may use them. Facts that the system does
// not report stay unknown and are never guessed. Tests construct synthetic topologies.
#pragma once

#include <string>
#include <vector>

namespace ballast {

constexpr int kUnknownNode = -1;

// A physical core: its sibling threads that may be used, ascending, never none.
struct Core {
  std::vector<int> cpus;
};

struct Node {
  int index = kUnknownNode;     // the kernel's number; kUnknownNode gathers the CPUs that no node lists
  std::vector<int> cpus;        // all of them, allowed or not, ascending
  std::vector<Core> cores;      // those that may be used, by their first CPU; none on a node of memory alone
  bool memory_allowed = false;  // whether this process may take memory from it
};

struct Topology {
  std::vector<Node> nodes;  // by index

  int num_cores() const;
  // That may be used.
  int num_cpus() const;
  // The node that has the CPU, allowed or not; kUnknownNode when none lists it.
  int node_of(int cpu) const;
};

// The machine whose /proc and /sys lie under `root`, for a process that may use `allowed_cpus`. CPUs that are
// offline or hidden are left out; a CPU whose siblings are not told is a core of its own.
Topology read_topology(const std::string& root, const std::vector<int>& allowed_cpus);

// CPUs that the process's first thread may use: those of the process, independent of how other threads are
// pinned. Throws std::system_error if the system does not report them.
std::vector<int> allowed_cpus();

// Parses the kernel's lists, such as "0-3,8,10-11"; ascending. Invalid text gives an empty list.
std::vector<int> parse_cpu_list(const std::string& text);

}  // namespace ballast
