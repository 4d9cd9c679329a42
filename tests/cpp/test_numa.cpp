#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "numa/memory.h"
#include "numa/placement.h"
#include "numa/topology.h"
#include "threads/mixed_tasks.h"
#include "threads/thread_pool.h"

using ballast::kAnyCpu;
using ballast::kUnknownNode;
using ballast::Pages;
using ballast::Placement;
using ballast::ThreadPool;
using ballast::Topology;

namespace {

// Simulated nodes: `num_nodes` nodes with `threads` threads each, none pinned.
Placement made_up(int num_nodes, int threads) {
  Placement placement;
  for (int node = 0; node < num_nodes; ++node) {
    placement.nodes.push_back({node, std::vector<int>(static_cast<size_t>(threads), kAnyCpu)});
  }
  return placement;
}

std::string text_of(const char* path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string own_status(const std::string& key) {
  std::ifstream status("/proc/thread-self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.compare(0, key.size() + 2, key + ":\t") == 0) return line.substr(key.size() + 2);
  }
  return "";
}

}  // namespace

TEST(tasks_of_several_rows_are_mixed_evenly_and_each_row_keeps_its_order) {
  const auto mixed = [](const std::vector<int64_t>& counts) {
    std::vector<size_t> rows;
    std::vector<int64_t> next(counts.size(), 0);
    for (const ballast::MixedTask& task : ballast::mixed_tasks(counts)) {
      EXPECT_EQ(task.index, next[task.row]++);
      rows.push_back(task.row);
    }
    EXPECT(next == counts);
    return rows;
  };
  EXPECT(mixed({4, 2}) == (std::vector<size_t>{0, 1, 0, 0, 1, 0}));
  EXPECT(mixed({1, 5}) == (std::vector<size_t>{1, 1, 0, 1, 1, 1}));
  EXPECT(mixed({0, 3}) == (std::vector<size_t>{1, 1, 1}));
  EXPECT(mixed({2, 2, 2}) == (std::vector<size_t>{0, 1, 2, 0, 1, 2}));
  EXPECT(mixed({0, 0}).empty() && mixed({}).empty());
}

TEST(kernel_lists_are_parsed_and_invalid_ones_are_empty) {
  EXPECT(ballast::parse_cpu_list("0-3,8,10-11\n") == (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  for (const char* text : {"", "\n", "x", "3-", "1-x", "-1", "1:2", "0x2", "2-4294967296"})
    EXPECT(ballast::parse_cpu_list(text).empty());
}

TEST(this_machine_has_a_core_for_the_process) {
  const std::vector<int> cpus = ballast::allowed_cpus();
  const Topology topology = ballast::read_topology("", cpus);
  EXPECT(!cpus.empty());
  EXPECT_EQ(topology.num_cpus(), static_cast<int>(cpus.size()));
  EXPECT(topology.num_cores() >= 1 && topology.num_cores() <= topology.num_cpus());
}

TEST(tasks_of_a_node_run_once_and_only_on_its_threads) {
  for (int num_nodes : {1, 2, 4}) {
    ThreadPool pool(made_up(num_nodes, 2));
    EXPECT_EQ(pool.num_nodes(), num_nodes);
    std::mutex mutex;
    std::map<std::thread::id, std::set<int>> nodes_of_thread;
    for (int round = 0; round < 300; ++round) {
      std::vector<int64_t> counts;
      for (int node = 0; node < num_nodes; ++node) counts.push_back((round + node * 5) % 9);
      std::vector<std::vector<std::atomic<int>>> visits;
      for (int64_t count : counts) visits.emplace_back(static_cast<size_t>(count));
      pool.parallel_for_nodes(counts, [&](int node, int64_t index) {
        ++visits[static_cast<size_t>(node)][static_cast<size_t>(index)];
        const std::lock_guard<std::mutex> lock(mutex);
        nodes_of_thread[std::this_thread::get_id()].insert(node);
      });
      for (const auto& of_node : visits) {
        for (const std::atomic<int>& count : of_node) EXPECT_EQ(count.load(), 1);
      }
    }
    for (const auto& [thread, nodes] : nodes_of_thread) EXPECT_EQ(nodes.size(), size_t{1});
    EXPECT(nodes_of_thread.at(std::this_thread::get_id()).count(0) == 1);
  }
}

TEST(a_node_without_tasks_is_not_awaited_and_common_loops_use_every_node) {
  ThreadPool pool(made_up(3, 1));
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 200; ++round) {
    pool.parallel_for_nodes({0, 0, 4}, [&](int node, int64_t index) { sum += node * 10 + index; });
    pool.parallel_for_nodes({0, 0, 0}, [&](int, int64_t) { sum += 1000000; });
    pool.parallel_for(5, [&](int64_t index) { sum += index; });
  }
  EXPECT_EQ(sum.load(), int64_t{200} * (4 * 20 + 6 + 10));
}

TEST(threads_asleep_on_another_node_wake_for_their_tasks) {
  ThreadPool pool(made_up(2, 1));
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> done{0};
    pool.parallel_for_nodes({0, 1}, [&](int, int64_t) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the caller falls asleep meanwhile
      ++done;
    });
    EXPECT_EQ(done.load(), 1);
  }
}

TEST(an_exception_on_one_node_cancels_the_others_and_reaches_the_caller) {
  ThreadPool pool(made_up(2, 2));
  for (int failing : {0, 1}) {
    for (int round = 0; round < 50; ++round) {
      EXPECT_THROWS(pool.parallel_for_nodes({1000000, 1000000},
                                            [&](int node, int64_t index) {
                                              if (node == failing && index == 10)
                                                throw std::runtime_error("failed");
                                            }),
                    std::runtime_error);
    }
    std::atomic<int> count{0};
    pool.parallel_for_nodes({3, 4}, [&](int, int64_t) { ++count; });
    EXPECT_EQ(count.load(), 7);
  }
}

TEST(a_thread_is_pinned_to_its_cpu_and_named) {
  const std::vector<int> cpus = ballast::allowed_cpus();
  Placement placement{{{0, {cpus.front(), cpus.back()}}}};
  std::thread([&] {  // a separate thread: adoption pins it permanently
    ThreadPool pool(placement);
    EXPECT_EQ(pool.pin_refusal().size(), size_t{0});
    EXPECT_EQ(pool.adopt_caller().size(), size_t{0});
    std::mutex mutex;
    std::set<std::string> seen;
    std::atomic<int> arrived{0};
    pool.parallel_for(2, [&](int64_t) {
      {
        const std::lock_guard<std::mutex> lock(mutex);
        seen.insert(own_status("Name") + " on " + own_status("Cpus_allowed_list"));
      }
      ++arrived;
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (arrived < 2 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    });
    EXPECT(seen == (std::set<std::string>{"ballast-cpu-0 on " + std::to_string(cpus.front()),
                                          "ballast-cpu-1 on " + std::to_string(cpus.back())}));
  })
      .join();
}

TEST(a_thread_that_cannot_be_pinned_runs_unpinned_and_reports_the_reason) {
  constexpr int kNoSuchCpu = 4095;
  std::thread([&] {
    ThreadPool pool(Placement{{{0, {kNoSuchCpu, kNoSuchCpu}}, {1, {kNoSuchCpu}}}});
    EXPECT(pool.pin_refusal().find("ballast-cpu-1 to CPU 4095: ") == 0);
    EXPECT(pool.adopt_caller().find("ballast-cpu-0 to CPU 4095: ") == 0);
    std::atomic<int> count{0};
    pool.parallel_for_nodes({5, 5}, [&](int, int64_t) { ++count; });
    EXPECT_EQ(count.load(), 10);
  }).join();
}

TEST(an_empty_placement_is_rejected) {
  EXPECT_THROWS(ThreadPool(Placement{}), std::invalid_argument);
  EXPECT_THROWS(ThreadPool(Placement{{{0, {}}, {1, {kAnyCpu}}}}), std::invalid_argument);
}

// Readable, untouched memory on the page at `address`, if that is free. The kernel merges it with an adjacent
// readable mapping.
class Neighbour {
 public:
  explicit Neighbour(uint8_t* address)
      : begin_(mmap(address, kBytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0)) {}
  ~Neighbour() {
    if (begin_ != MAP_FAILED) munmap(begin_, kBytes);
  }
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

  static constexpr size_t kBytes = 4096;

 private:
  void* const begin_;
};

TEST(memory_is_counted_exactly_next_to_adjacent_mappings) {
  constexpr size_t kMega = size_t{1} << 20;
  for (const size_t num_bytes :
       {size_t{1}, size_t{4096}, size_t{23456}, 4 * kMega + 123, 5 * kMega + 123, 2 * kMega - 1}) {
    const Pages pages(num_bytes);
    const size_t whole = pages.mapped_size();
    EXPECT_EQ(pages.size(), num_bytes);
    // The last huge page is whole if at least half of it is used.
    const size_t rest = num_bytes % (2 * kMega);
    EXPECT_EQ(whole, rest < kMega ? (num_bytes + 4095) / 4096 * 4096 : num_bytes - rest + 2 * kMega);
    EXPECT(std::all_of(pages.data(), pages.data() + whole, [](uint8_t byte) { return byte == 0; }));
    std::fill_n(pages.data(), whole, uint8_t{1});
    std::vector<std::unique_ptr<Neighbour>> neighbours;
    for (size_t page = 1; page <= 3; ++page) {
      neighbours.push_back(std::make_unique<Neighbour>(pages.data() - page * Neighbour::kBytes));
      neighbours.push_back(
          std::make_unique<Neighbour>(pages.data() + whole + (page - 1) * Neighbour::kBytes));
    }
    const auto bytes = ballast::bytes_per_node(text_of("/proc/self/numa_maps"), text_of("/proc/self/maps"),
                                               {{reinterpret_cast<uintptr_t>(pages.data()), whole}});
    int64_t total = 0;
    for (const auto& entry : bytes) total += entry.second;
    EXPECT_EQ(total, static_cast<int64_t>(whole));
  }
  EXPECT_EQ(Pages(0).size(), size_t{0});
}

TEST(memory_is_bound_only_if_nodes_exist) {
  const Pages pages(4096);
  EXPECT(!ballast::prefer_node(pages, ballast::kUnknownNode));
  EXPECT(!ballast::prefer_node(pages, 4095));
  EXPECT(!ballast::prefer_node(Pages(0), 0));
  const ballast::Topology machine = ballast::read_topology("", ballast::allowed_cpus());
  for (const ballast::Node& node : machine.nodes) {
    if (node.memory_allowed && node.index >= 0)
      EXPECT_EQ(ballast::prefer_node(pages, node.index), ballast::mempolicy_available());
  }
}

TEST(the_memory_policy_check_returns) {
  const bool first = ballast::mempolicy_available();
  EXPECT_EQ(ballast::mempolicy_available(), first);
}
