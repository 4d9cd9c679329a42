#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/check.h"
#include "check.h"
#include "numa/index_range.h"
#include "numa/thread_pool.h"

using ballast::Chunks;
using ballast::IndexRange;
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

TEST(writes_of_tasks_are_seen_after_the_loop_in_thousands_of_short_loops) {
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
    // Each task waits for the others: the loop ends only if three threads take
    // part.
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

TEST(a_loop_inside_a_task_breaks_an_invariant_instead_of_hanging) {
  for (int num_threads : {1, 2}) {
    ThreadPool pool(num_threads);
    EXPECT_THROWS(pool.parallel_for(4, [&](int64_t) { pool.parallel_for(4, [](int64_t) {}); }),
                  ballast::InvariantError);
    for (int visits : count_visits(pool, 20)) EXPECT_EQ(visits, 1);
  }
}

TEST(callers_on_several_threads_take_turns) {
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

TEST(pools_come_and_go_whether_used_or_not) {
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
  // Spinning threads would take 400 ms each; a tenth of one is allowed for
  // everything else in the process.
  EXPECT(std::clock() - before < CLOCKS_PER_SEC / 25);
}

// A thread that went without a processor meanwhile has spun the less, so the clock of the processor tells it
// whatever else runs.
TEST(a_worker_spins_a_tenth_of_a_millisecond_and_sleeps) {
  ThreadPool pool(2);
  std::vector<double> microseconds;
  for (int round = 0; round < 21; ++round) {
    clockid_t workers_clock = 0;
    std::atomic<bool> joined{false};
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    const std::thread::id caller = std::this_thread::get_id();
    pool.parallel_for(2, [&](int64_t) {
      if (std::this_thread::get_id() != caller) {
        pthread_getcpuclockid(pthread_self(), &workers_clock);
        joined = true;
      }
      while (!joined && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    });
    EXPECT(joined.load());
    const auto used = [workers_clock] {
      timespec time{};
      clock_gettime(workers_clock, &time);
      return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
    };
    const double before = used();
    double now = before;
    // Asleep once its clock has stood still for 20 ms, in which a spinning thread would have had its turn.
    for (double last = -1.0; last != now && std::chrono::steady_clock::now() < limit;) {
      last = now;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      now = used();
    }
    microseconds.push_back(now - before);
  }
  std::sort(microseconds.begin(), microseconds.end());
  // Spinning, and going to sleep under a sanitizer.
  EXPECT(microseconds[10] < 1000.0);
}

TEST(a_pool_of_no_sensible_size_is_refused) {
  EXPECT_THROWS(ThreadPool(0), std::invalid_argument);
  EXPECT_THROWS(ThreadPool(-1), std::invalid_argument);
  EXPECT_THROWS(ThreadPool(ThreadPool::kMaxThreads + 1), std::invalid_argument);
}
