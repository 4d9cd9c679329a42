#include "numa/topology.h"

#include <dirent.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/words.h"

namespace ballast {
namespace {

// Empty where the system has no such file or keeps it from us.
std::string read_text(const std::string& path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "re"), std::fclose);
  std::string text;
  if (!file) return text;
  char buffer[4096];
  while (const size_t size = std::fread(buffer, 1, sizeof(buffer), file.get())) text.append(buffer, size);
  return text;
}

bool contains(const std::vector<int>& sorted, int value) {
  return std::binary_search(sorted.begin(), sorted.end(), value);
}

std::vector<int> node_indices(const std::string& folder) {
  std::vector<int> indices;
  const std::unique_ptr<DIR, int (*)(DIR*)> opened(opendir(folder.c_str()), closedir);
  if (!opened) return indices;
  while (const dirent* entry = readdir(opened.get())) {
    const std::string_view name = entry->d_name;
    if (name.substr(0, 4) != "node") continue;
    if (const auto index = to_number<int>(name.substr(4))) indices.push_back(*index);
  }
  std::sort(indices.begin(), indices.end());
  return indices;
}

// The text after `key:` on a line of its own, as /proc/*/status has it.
std::string status_value(const std::string& status, const std::string& key) {
  for (const std::string_view line : split(status, "\n")) {
    if (line.substr(0, key.size() + 1) == key + ":") return std::string(line.substr(key.size() + 1));
  }
  return "";
}

// The usable CPUs of one node as cores. Siblings in another node make no core: none is that wide.
std::vector<Core> group_into_cores(const std::string& cpu_folder, const std::vector<int>& cpus) {
  std::vector<Core> cores;
  std::map<int, size_t> core_of_first_sibling;
  for (int cpu : cpus) {
    const std::string topology = cpu_folder + "/cpu" + std::to_string(cpu) + "/topology/";
    const std::vector<int> siblings = parse_cpu_list(read_text(topology + "thread_siblings_list"));
    const int first = contains(siblings, cpu) ? siblings.front() : cpu;
    const auto [found, is_new] = core_of_first_sibling.try_emplace(first, cores.size());
    if (is_new) cores.emplace_back();
    cores[found->second].cpus.push_back(cpu);
  }
  return cores;
}

}  // namespace

int Topology::num_cores() const {
  size_t count = 0;
  for (const Node& node : nodes) count += node.cores.size();
  return static_cast<int>(count);
}

int Topology::num_cpus() const {
  size_t count = 0;
  for (const Node& node : nodes) {
    for (const Core& core : node.cores) count += core.cpus.size();
  }
  return static_cast<int>(count);
}

int Topology::node_of(int cpu) const {
  for (const Node& node : nodes) {
    if (contains(node.cpus, cpu)) return node.index;
  }
  return kUnknownNode;
}

Topology read_topology(const std::string& root, const std::vector<int>& allowed_cpus) {
  const std::string node_folder = root + "/sys/devices/system/node";
  const std::string cpu_folder = root + "/sys/devices/system/cpu";
  const std::string mems = status_value(read_text(root + "/proc/self/status"), "Mems_allowed_list");
  const std::vector<int> memory_nodes = parse_cpu_list(mems);
  const std::string online_text = read_text(cpu_folder + "/online");
  const std::vector<int> online = parse_cpu_list(online_text);

  std::vector<int> unlisted;
  for (int cpu : allowed_cpus) {
    if (online.empty() || contains(online, cpu)) unlisted.push_back(cpu);
  }
  std::sort(unlisted.begin(), unlisted.end());
  unlisted.erase(std::unique(unlisted.begin(), unlisted.end()), unlisted.end());

  Topology topology;
  for (int index : node_indices(node_folder)) {
    Node node;
    node.index = index;
    node.cpus = parse_cpu_list(read_text(node_folder + "/node" + std::to_string(index) + "/cpulist"));
    node.memory_allowed = memory_nodes.empty() || contains(memory_nodes, index);
    std::vector<int> usable;
    const auto others = std::stable_partition(unlisted.begin(), unlisted.end(),
                                              [&](int cpu) { return !contains(node.cpus, cpu); });
    usable.assign(others, unlisted.end());
    unlisted.erase(others, unlisted.end());
    node.cores = group_into_cores(cpu_folder, usable);
    topology.nodes.push_back(std::move(node));
  }
  if (!unlisted.empty()) {
    Node node;
    node.cpus = unlisted;
    node.cores = group_into_cores(cpu_folder, unlisted);
    node.memory_allowed = true;
    topology.nodes.insert(topology.nodes.begin(), std::move(node));
  }
  return topology;
}

std::vector<int> allowed_cpus() {
  constexpr int kMostCpus = 1 << 20;
  for (int capacity = CPU_SETSIZE; capacity <= kMostCpus; capacity *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(static_cast<size_t>(capacity)),
                                                               [](cpu_set_t* used) { CPU_FREE(used); });
    const size_t size = CPU_ALLOC_SIZE(static_cast<size_t>(capacity));
    if (sched_getaffinity(getpid(), size, set.get()) == 0) {
      std::vector<int> cpus;
      for (int cpu = 0; cpu < capacity; ++cpu) {
        if (CPU_ISSET_S(static_cast<size_t>(cpu), size, set.get())) cpus.push_back(cpu);
      }
      return cpus;
    }
    if (errno != EINVAL) break;  // EINVAL: the kernel's masks are longer
  }
  throw std::system_error(errno, std::generic_category(), "sched_getaffinity");
}

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> numbers;
  for (const std::string_view part : split(text, ", \t\n")) {
    const size_t dash = part.find('-');
    const auto first = to_number<int>(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : to_number<int>(part.substr(dash + 1));
    if (!first || !last) return {};
    for (int number = *first; number <= *last; ++number) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace ballast
