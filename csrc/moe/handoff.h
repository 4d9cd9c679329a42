// A thread that computes layers on a device's request; the two signal each other through words of shared
// memory.
//
// A layer's input is ready when its `submitted` word is 1. The thread resets the word to 0, computes, and
// sets the layer's `done` word to 1; the device waits for that and resets it to 0. All written values are
// constants, so the device's side can be captured in a graph. A step submits every layer once, in ascending
// order.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "base/awake_clock.h"
#include "threads/thread_pool.h"

namespace ballast {

class Handoff {
 public:
  // Initially 0. They must outlive the Handoff.
  struct Words {
    std::atomic<uint32_t>* submitted;
    std::atomic<uint32_t>* done;
    int64_t num_layers;
  };
  using Compute = std::function<void(int64_t layer, int64_t num_tokens)>;

  // Extra time to compute a layer, for each token of its step: what a layer of DeepSeek-R1 takes at 7
  // GFLOP/s.
  static constexpr std::chrono::milliseconds kPerToken{100};

  // `compute` computes with `pool`, whose threads are kept awake while a step runs. `on_start` runs first on
  // the thread. A step fails if a layer is not submitted within `limit`, or not computed within `limit` plus
  // kPerToken per token. A pause of the whole process does not count.
  Handoff(const Words& words, ThreadPool& pool, Compute compute, std::chrono::milliseconds limit,
          const std::function<void()>& on_start);
  // Ends the thread; a running step fails.
  ~Handoff();
  Handoff(const Handoff&) = delete;
  Handoff& operator=(const Handoff&) = delete;

  // Begins a step of `num_tokens` tokens. Throws the error of a failed earlier step, and std::logic_error
  // while a step is running.
  void begin(int64_t num_tokens);
  // Waits up to `timeout`, which is short compared with the limit, until the step's layers are computed;
  // returns whether they are. Throws the error of a failed step: every word that the device may wait for is
  // then one, and no further layer is computed.
  bool finish(std::chrono::milliseconds timeout);

 private:
  static constexpr int64_t kNoLayer = -1;

  void run(const std::function<void()>& on_start);
  void step(int64_t num_tokens);
  void await(int64_t layer);
  void compute(int64_t layer, int64_t num_tokens);
  int64_t overdue();
  std::chrono::milliseconds compute_limit() const;
  void fail(std::exception_ptr error);

  const Words words_;
  ThreadPool& pool_;
  const Compute compute_;
  const std::chrono::milliseconds limit_;

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t num_tokens_ = 0;  // of the step that runs; 0: none does
  std::exception_ptr error_;
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> layer_{kNoLayer};  // what the thread computes
  // State of the caller's side: the last completed layer that it saw, and the time since.
  int64_t watched_ = kNoLayer;
  AwakeClock watching_;

  std::thread thread_;  // the last member: it uses the others
};

}  // namespace ballast
