#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/index_range.h"
#include "check.h"
#include "threads/thread_pool.h"
#include "worker_clock.h"

using ballast::Chunks;
using ballast::IndexRange;
using ballast::kAnyCpu;
using ballast::Placement;
using ballast::ThreadPool;

namespace {

std::vector<int> count_visits(ThreadPool& pool, int64_t count) {
  const auto visits = std::make_unique<std::atomic<int>[]>(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) visits[i] = 0;
  pool.parallel_for(count, [&](int64_t index) { ++visits[index]; });
  return std::vector<int>(visits.get(), visits.get() + count);
}

}  // namespace

TEST(chunks_cover_every_index_once_and_in_order) {
  for (int64_t total : {0, 1, 7, 8, 9, 64}) {
    for (int64_t size : {1, 3, 8, 100}) {
      const Chunks chunks(total, size);
      int64_t next = 0;
      for (int64_t i = 0; i < chunks.count(); ++i) {
        const IndexRange range = chunks[i];
        EXPECT_EQ(range.begin, next);
        EXPECT(range.size() > 0 && range.size() <= size);
        next = range.end;
      }
      EXPECT_EQ(next, total);
    }
  }
}

TEST(each_index_is_visited_exactly_once) {
  for (int num_threads : {1, 2, 3, 8}) {
    ThreadPool pool(num_threads);
    EXPECT_EQ(pool.num_threads(), num_threads);
    for (int64_t count : {0, 1, 2, 3, 100, 1000}) {
      for (int visits : count_visits(pool, count)) EXPECT_EQ(visits, 1);
    }
  }
}

TEST(writes_of_tasks_are_visible_after_thousands_of_short_loops) {
  ThreadPool pool(3);
  std::vector<int64_t> values(5, 0);
  for (int64_t round = 1; round <= 5000; ++round) {
    pool.parallel_for(5, [&](int64_t index) { values[static_cast<size_t>(index)] += index; });
    EXPECT_EQ(values[4], 4 * round);
  }
}

TEST(threads_that_fell_asleep_wake_for_the_next_loop) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> arrived{0};
    // Each task waits for the others: the loop ends only if three threads
    // participate.
    pool.parallel_for(3, [&](int64_t) {
      ++arrived;
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (arrived < 3 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    });
    EXPECT_EQ(arrived.load(), 3);
  }
}

TEST(the_caller_sleeps_until_a_slow_worker_is_done) {
  ThreadPool pool(2);
  std::atomic<bool> finished{false};
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> worker_began{false};
  pool.parallel_for(2, [&](int64_t) {
    if (std::this_thread::get_id() == caller) {
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (!worker_began && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    } else {
      worker_began = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      finished = true;
    }
  });
  EXPECT(finished);
}

TEST(an_exception_reaches_the_caller_cancels_the_rest_and_leaves_the_pool_usable) {
  for (int num_threads : {1, 3}) {
    ThreadPool pool(num_threads);
    for (int round = 0; round < 50; ++round) {
      std::atomic<int64_t> begun{0};
      EXPECT_THROWS(pool.parallel_for(1000000,
                                      [&](int64_t index) {
                                        ++begun;
                                        if (index >= 10) throw std::runtime_error("task failed");
                                      }),
                    std::runtime_error);
      EXPECT(begun < 1000000);
    }
    for (int visits : count_visits(pool, 20)) EXPECT_EQ(visits, 1);
  }
}

TEST(a_claimed_index_is_visited_once_and_next_by_the_thread_that_claimed_it) {
  const Placement two_nodes{{{0, {kAnyCpu, kAnyCpu}}, {1, {kAnyCpu, kAnyCpu, kAnyCpu}}}};
  for (const Placement& placement :
       {Placement{{{0, {kAnyCpu}}}}, Placement{{{0, {kAnyCpu, kAnyCpu}}}}, two_nodes}) {
    ThreadPool pool(placement);
    const std::vector<int64_t> counts = {700, 300};
    const size_t num_nodes = static_cast<size_t>(pool.num_nodes());
    for (int round = 0; round < 20; ++round) {
      std::atomic<int> visits[2][700] = {};
      std::atomic<int> wrong{0};
      std::atomic<int> num_claimed{0};
      pool.parallel_for_nodes({counts.begin(), counts.begin() + static_cast<int64_t>(num_nodes)},
                              [&](int node, int64_t index) {
                                static thread_local int64_t claimed = ThreadPool::kNoTask;
                                ++visits[node][index];
                                wrong += claimed != ThreadPool::kNoTask && claimed != index;
                                claimed = ThreadPool::claim_next();
                                wrong += ThreadPool::claim_next() != claimed;
                                num_claimed += claimed != ThreadPool::kNoTask;
                              });
      EXPECT_EQ(wrong.load(), 0);
      EXPECT(num_claimed > 0);
      for (size_t node = 0; node < num_nodes; ++node) {
        for (int64_t index = 0; index < counts[node]; ++index) EXPECT_EQ(visits[node][index].load(), 1);
      }
    }
  }
}

TEST(the_last_indices_are_left_to_the_first_free_thread) {
  ThreadPool pool(1);
  std::vector<int64_t> claimed;
  pool.parallel_for(5, [&](int64_t) { claimed.push_back(ThreadPool::claim_next()); });
  constexpr int64_t kNoTask = ThreadPool::kNoTask;
  EXPECT(claimed == std::vector<int64_t>({1, 2, 3, kNoTask, kNoTask}));
  ThreadPool three(3);
  std::atomic<int64_t> largest{-1};
  three.parallel_for(5, [&](int64_t) { largest = std::max(largest.load(), ThreadPool::claim_next()); });
  EXPECT(largest <= 1);
  EXPECT_EQ(ThreadPool::claim_next(), kNoTask);  // outside a task
}

TEST(an_exception_cancels_a_claimed_index_too) {
  ThreadPool pool(1);
  std::vector<int64_t> begun;
  EXPECT_THROWS(pool.parallel_for(10,
                                  [&](int64_t index) {
                                    begun.push_back(index);
                                    ThreadPool::claim_next();
                                    throw std::runtime_error("task failed");
                                  }),
                std::runtime_error);
  EXPECT(begun == std::vector<int64_t>({0}));
}

TEST(a_loop_inside_a_task_fails_a_check_instead_of_hanging) {
  for (int num_threads : {1, 2}) {
    ThreadPool pool(num_threads);
    EXPECT_THROWS(pool.parallel_for(4, [&](int64_t) { pool.parallel_for(4, [](int64_t) {}); }),
                  ballast::InvariantError);
    for (int visits : count_visits(pool, 20)) EXPECT_EQ(visits, 1);
  }
}

TEST(calls_from_several_threads_are_serialized) {
  ThreadPool pool(2);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        for (int visits : count_visits(pool, 17)) wrong += visits != 1;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(pools_can_be_destroyed_used_or_unused) {
  for (int round = 0; round < 100; ++round) {
    ThreadPool unused(3);
    ThreadPool pool(3);
    for (int visits : count_visits(pool, 3)) EXPECT_EQ(visits, 1);
  }
}

TEST(an_idle_pool_uses_no_processor_time) {
  ThreadPool pool(4);
  count_visits(pool, 100);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // many times the 100 µs that a thread may spin
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  // Spinning threads would use 400 ms each; a tenth of that is allowed for
  // all other work in the process.
  EXPECT(std::clock() - before < CLOCKS_PER_SEC / 25);
}

TEST(a_worker_spins_a_tenth_of_a_millisecond_and_sleeps) {
  ThreadPool pool(2);
  std::vector<double> microseconds;
  for (int round = 0; round < 21; ++round) {
    const WorkerClock worker(pool);
    const double before = worker.microseconds();
    microseconds.push_back(worker.once_asleep() - before);
  }
  std::sort(microseconds.begin(), microseconds.end());
  // The spin time, plus the time to fall asleep under a sanitizer.
  EXPECT(microseconds[10] < 1000.0);
}

TEST(keep_awake_wakes_a_worker_that_sleeps_again_later) {
  ThreadPool pool(2);
  const WorkerClock worker(pool);
  double longest = 0.0;
  int num_undisturbed = 0;
  // The worker spins for less time if another thread or the hypervisor takes its CPU.
  for (int round = 0; round < 200 && longest <= 1000.0; ++round) {
    const double before = worker.once_asleep();
    const long interrupted = worker.times_interrupted();
    const ThreadPool::KeepAwake awake(pool);
    EXPECT(worker.has_moved_on(before));
    const double spun = worker.once_asleep() - before;
    if (worker.times_interrupted() != interrupted) continue;
    longest = std::max(longest, spun);
    ++num_undisturbed;
  }
  EXPECT(num_undisturbed == 0 || longest > 1000.0);
}

TEST(threads_wake_for_every_loop_with_and_without_keep_awake) {
  ThreadPool pool(3);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) {
      const ThreadPool::KeepAwake awake(pool);
      std::this_thread::yield();
    }
  });
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (int round = 0; round < 300; ++round) {
    if (round % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(round));
    std::atomic<int> arrived{0};
    pool.parallel_for(3, [&](int64_t) {
      ++arrived;
      while (arrived < 3 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    });
    EXPECT_EQ(arrived.load(), 3);
  }
  stop = true;
  other.join();
}

TEST(a_recording_has_begin_join_and_end_of_each_shared_loop) {
  ThreadPool pool(3);
  count_visits(pool, 100);
  pool.start_recording();
  for (int round = 0; round < 3; ++round) {
    std::atomic<int> arrived{0};
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    pool.parallel_for(3, [&](int64_t) {
      ++arrived;
      while (arrived < 3 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    });
  }
  const std::vector<ballast::LoopTimes> loops = pool.stop_recording();
  EXPECT_EQ(loops.size(), 3u);
  int64_t last = 0;
  for (const ballast::LoopTimes& loop : loops) {
    EXPECT(last <= loop.opened && loop.opened <= loop.first_joined);
    EXPECT(loop.first_joined <= loop.last_joined && loop.last_joined <= loop.over);
    last = loop.over;
  }
  count_visits(pool, 100);
  EXPECT(pool.stop_recording().empty());
}

TEST(a_pool_of_an_invalid_size_is_rejected) {
  EXPECT_THROWS(ThreadPool(0), std::invalid_argument);
  EXPECT_THROWS(ThreadPool(-1), std::invalid_argument);
  EXPECT_THROWS(ThreadPool(ThreadPool::kMaxThreads + 1), std::invalid_argument);
}
