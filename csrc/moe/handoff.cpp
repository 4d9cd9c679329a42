#include "moe/handoff.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "base/relax.h"

namespace ballast {
namespace {

// A device's attention takes tens of microseconds a layer in decoding, milliseconds for a long prompt: a
// waiting thread turns from spinning to short sleeps between the two.
constexpr auto kSpin = std::chrono::milliseconds(2);
constexpr auto kNap = std::chrono::microseconds(20);
constexpr int kLooksBetweenClocks = 256;

}  // namespace

Handoff::Handoff(const Words& words, ThreadPool& pool, Compute compute, std::chrono::milliseconds limit,
                 const std::function<void()>& on_start)
    : words_(words),
      pool_(pool),
      compute_(std::move(compute)),
      limit_(limit),
      watching_(AwakeClock::for_limit(limit)),
      thread_([this, on_start] { run(on_start); }) {}

Handoff::~Handoff() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  thread_.join();
}

void Handoff::begin(int64_t num_tokens) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    if (num_tokens_ != 0) throw std::logic_error("a step is running; expected its finish first");
    if (num_tokens < 1) {
      throw std::invalid_argument("num_tokens is " + std::to_string(num_tokens) + "; expected 1 or more");
    }
    num_tokens_ = num_tokens;
  }
  watched_ = kNoLayer;
  changed_.notify_all();
}

bool Handoff::finish(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  const bool is_over = changed_.wait_for(lock, timeout, [this] { return num_tokens_ == 0 || error_; });
  if (const int64_t layer = is_over ? kNoLayer : overdue(); layer != kNoLayer) {
    stopping_.store(true, std::memory_order_release);  // whenever it comes back
    fail(std::make_exception_ptr(
        std::runtime_error("the experts of layer " + std::to_string(layer) + " have been computed for over " +
                           std::to_string(compute_limit().count()) + " ms and are not done")));
  }
  if (error_) std::rethrow_exception(error_);
  return is_over;
}

void Handoff::run(const std::function<void()>& on_start) {
  on_start();
  while (true) {
    int64_t num_tokens = 0;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      const auto is_asked = [this] { return num_tokens_ != 0 && !error_; };
      changed_.wait(lock, [&] { return is_asked() || stopping_.load(std::memory_order_relaxed); });
      if (!is_asked()) return;
      num_tokens = num_tokens_;
    }
    std::exception_ptr error;
    try {
      step(num_tokens);
    } catch (...) {
      error = std::current_exception();
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (error) fail(error);
      num_tokens_ = 0;
    }
    changed_.notify_all();
  }
}

// Called with the lock held. Keeps the first error.
void Handoff::fail(std::exception_ptr error) {
  if (!error_) error_ = std::move(error);
  for (int64_t layer = 0; layer < words_.num_layers; ++layer) {
    words_.done[layer].store(1, std::memory_order_release);
  }
}

void Handoff::step(int64_t num_tokens) {
  const ThreadPool::KeepAwake awake(pool_);
  for (int64_t layer = 0; layer < words_.num_layers; ++layer) {
    await(layer);
    words_.submitted[layer].store(0, std::memory_order_relaxed);
    compute(layer, num_tokens);
    words_.done[layer].store(1, std::memory_order_release);
  }
}

void Handoff::compute(int64_t layer, int64_t num_tokens) {
  layer_.store(layer, std::memory_order_relaxed);
  compute_(layer, num_tokens);
  layer_.store(kNoLayer, std::memory_order_relaxed);
}

int64_t Handoff::overdue() {
  const int64_t layer = layer_.load(std::memory_order_relaxed);
  if (layer != watched_) {
    watched_ = layer;
    watching_ = AwakeClock::for_limit(limit_);
  }
  return watching_.now() > compute_limit() ? layer : kNoLayer;
}

// Called with the lock held.
std::chrono::milliseconds Handoff::compute_limit() const { return limit_ + num_tokens_ * kPerToken; }

void Handoff::await(int64_t layer) {
  const std::atomic<uint32_t>& word = words_.submitted[layer];
  const auto check_wanted = [this] {
    if (stopping_.load(std::memory_order_acquire)) {
      throw std::runtime_error("the hand-off was ended in a step");
    }
  };
  check_wanted();
  AwakeClock clock = AwakeClock::for_limit(limit_);
  bool is_long = false;
  for (int64_t looks = 1; word.load(std::memory_order_acquire) == 0; ++looks) {
    relax();
    if (!is_long && looks % kLooksBetweenClocks != 0) continue;
    check_wanted();
    const AwakeClock::Clock::duration waited = clock.now();
    if (waited > limit_) {
      throw std::runtime_error("the device has not asked for the experts of layer " + std::to_string(layer) +
                               " for " + std::to_string(limit_.count()) + " ms");
    }
    is_long = waited > kSpin;
    if (is_long) {
      std::this_thread::sleep_for(kNap);
    } else {
      std::this_thread::yield();  // to the thread that queues the step, where it shares this one's CPU
    }
  }
}

}  // namespace ballast
