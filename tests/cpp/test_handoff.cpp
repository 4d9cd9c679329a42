// The CPU expert offload, with a thread that acts as the device.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"
#include "moe/handoff.h"
#include "worker_clock.h"

using ballast::Handoff;
using ballast::ThreadPool;

namespace {

constexpr auto kPlenty = std::chrono::milliseconds(60'000);

ThreadPool& pool() {
  static ThreadPool two(2);
  return two;
}

struct Memory {
  explicit Memory(int64_t num_layers)
      : count(num_layers),
        submitted(new std::atomic<uint32_t>[static_cast<size_t>(num_layers)]()),
        done(new std::atomic<uint32_t>[static_cast<size_t>(num_layers)]()) {}

  Handoff::Words words() const { return {submitted.get(), done.get(), count}; }

  int64_t count;
  std::unique_ptr<std::atomic<uint32_t>[]> submitted;
  std::unique_ptr<std::atomic<uint32_t>[]> done;
  // Guarded by the words. Not atomic, so that TSan reports missing synchronization between the threads as a
  // race.
  int64_t input = 0;
  int64_t result = 0;
};

// Returns false if the word has not become 1 in time.
bool wait_and_clear(std::atomic<uint32_t>& word) {
  const auto end = std::chrono::steady_clock::now() + kPlenty;
  while (word.load(std::memory_order_acquire) == 0) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  word.store(0, std::memory_order_release);
  return true;
}

// The constants that a captured graph would write, for one step.
int64_t play_step(Memory& memory, int64_t value) {
  for (int64_t layer = 0; layer < memory.count; ++layer) {
    memory.input = value;
    memory.submitted[static_cast<size_t>(layer)].store(1, std::memory_order_release);
    EXPECT(wait_and_clear(memory.done[static_cast<size_t>(layer)]));
    value = memory.result;
  }
  return value;
}

void expect_cleared(const Memory& memory) {
  for (size_t layer = 0; layer < static_cast<size_t>(memory.count); ++layer) {
    EXPECT_EQ(memory.submitted[layer].load(), 0u);
    EXPECT_EQ(memory.done[layer].load(), 0u);
  }
}

}  // namespace

TEST(layers_are_computed_in_order_and_reset_their_words) {
  Memory memory(7);
  std::atomic<int> starts{0};
  Handoff handoff(
      memory.words(), pool(),
      [&](int64_t layer, int64_t tokens) { memory.result = 3 * memory.input + layer + tokens; }, kPlenty,
      [&] { ++starts; });
  for (int64_t step = 1; step <= 300; ++step) {
    handoff.begin(step);
    int64_t found = 0;
    std::thread device([&] { found = play_step(memory, step); });
    EXPECT(handoff.finish(kPlenty));
    device.join();
    int64_t expected = step;
    for (int64_t layer = 0; layer < 7; ++layer) expected = 3 * expected + layer + step;
    EXPECT_EQ(found, expected);
  }
  expect_cleared(memory);
  EXPECT_EQ(starts.load(), 1);
}

TEST(a_layer_may_be_submitted_late_and_computed_slowly) {
  Memory memory(2);
  const auto nap = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  Handoff handoff(
      memory.words(), pool(),
      [&](int64_t, int64_t) {
        nap();
        memory.result = memory.input + 1;
      },
      kPlenty, [] {});
  handoff.begin(1);
  std::thread device([&] {
    nap();
    EXPECT_EQ(play_step(memory, 5), 7);
  });
  EXPECT(handoff.finish(kPlenty));
  device.join();
}

TEST(a_failure_releases_the_device_and_is_reported_permanently) {
  Memory memory(4);
  Handoff handoff(
      memory.words(), pool(),
      [&](int64_t layer, int64_t) {
        if (layer == 1) throw std::range_error("an expert failed");
      },
      kPlenty, [] {});
  handoff.begin(1);
  std::thread device([&] { play_step(memory, 1); });
  EXPECT_THROWS(handoff.finish(kPlenty), std::range_error);
  device.join();
  EXPECT_THROWS(handoff.begin(1), std::range_error);
}

TEST(a_device_that_does_not_submit_fails_the_step) {
  Memory memory(2);
  Handoff handoff(memory.words(), pool(), [](int64_t, int64_t) {}, std::chrono::milliseconds(10), [] {});
  handoff.begin(1);
  EXPECT_THROWS(handoff.finish(kPlenty), std::runtime_error);
  EXPECT_EQ(memory.done[1].load(), 1u);
}

TEST(experts_that_never_finish_fail_the_step_and_release_the_device) {
  Memory memory(3);
  std::atomic<bool> released{false};
  std::atomic<int> computed{0};
  {
    Handoff handoff(
        memory.words(), pool(),
        [&](int64_t, int64_t) {
          ++computed;
          while (!released) std::this_thread::yield();
        },
        std::chrono::milliseconds(200), [] {});
    memory.submitted[0].store(1);
    handoff.begin(1);
    const auto wait = [&] {
      while (!handoff.finish(std::chrono::milliseconds(1))) {
      }
    };
    EXPECT_THROWS(wait(), std::runtime_error);
    for (size_t layer = 0; layer < 3; ++layer) EXPECT_EQ(memory.done[layer].load(), 1u);
    EXPECT_THROWS(handoff.begin(1), std::runtime_error);
    memory.submitted[1].store(1);
    released = true;
  }
  EXPECT_EQ(computed.load(), 1);
}

TEST(experts_of_a_long_step_may_take_longer_than_the_device) {
  Memory memory(1);
  const auto limit = std::chrono::milliseconds(20);
  Handoff handoff(
      memory.words(), pool(), [&](int64_t, int64_t) { std::this_thread::sleep_for(5 * limit); }, limit,
      [] {});
  memory.submitted[0].store(1);
  handoff.begin(600);
  while (!handoff.finish(limit)) {
  }
  EXPECT_EQ(memory.done[0].load(), 1u);
}

TEST(steps_are_one_at_a_time_and_have_tokens) {
  Memory memory(1);
  Handoff handoff(memory.words(), pool(), [](int64_t, int64_t) {}, kPlenty, [] {});
  EXPECT_THROWS(handoff.begin(0), std::invalid_argument);
  handoff.begin(1);
  EXPECT(!handoff.finish(std::chrono::milliseconds(1)));
  EXPECT_THROWS(handoff.begin(1), std::logic_error);
  play_step(memory, 0);
  EXPECT(handoff.finish(kPlenty));
  EXPECT(handoff.finish(kPlenty));  // no step runs, so it returns immediately
}

TEST(a_model_without_routed_layers_does_not_wait) {
  Memory memory(0);
  Handoff handoff(memory.words(), pool(), [](int64_t, int64_t) {}, kPlenty, [] {});
  for (int step = 0; step < 20; ++step) {
    handoff.begin(3);
    EXPECT(handoff.finish(kPlenty));
  }
}

TEST(a_step_wakes_the_pool_before_a_layer_is_submitted) {
  Memory memory(1);
  Handoff handoff(memory.words(), pool(), [](int64_t, int64_t) {}, kPlenty, [] {});
  const WorkerClock worker(pool());
  for (int step = 0; step < 3; ++step) {
    const double before = worker.once_asleep();
    handoff.begin(1);
    EXPECT(worker.has_moved_on(before));
    play_step(memory, 0);
    EXPECT(handoff.finish(kPlenty));
  }
}

TEST(a_handoff_can_be_destroyed_during_a_step) {
  Memory memory(3);
  {
    Handoff handoff(memory.words(), pool(), [](int64_t, int64_t) {}, kPlenty, [] {});
    handoff.begin(1);
  }
  EXPECT_EQ(memory.done[2].load(), 1u);
}
