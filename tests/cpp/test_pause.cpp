// Waits with a time limit in a process that is stopped for longer than that: here with SIGSTOP, in production
// together with its machine.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "base/awake_clock.h"
#include "check.h"
#include "moe/handoff.h"

using ballast::AwakeClock;
using ballast::Handoff;
using ballast::ThreadPool;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kPause{400};

using Pause = std::function<void()>;

// Runs `body` in a separate process. Each call of its argument stops that process for kPause. Returns whether
// it succeeded.
bool goes_well(const std::function<void(const Pause&)>& body) {
  int asks[2], answers[2];
  if (pipe(asks) != 0 || pipe(answers) != 0) return false;
  const pid_t child = fork();
  if (child == 0) {
    check::failures = 0;
    close(asks[0]);  // the parent's read end; the parent notices when the child has exited
    const auto pause = [&] {
      char byte = 0;
      EXPECT_EQ(write(asks[1], &byte, 1), ssize_t{1});
      EXPECT_EQ(read(answers[0], &byte, 1), ssize_t{1});
    };
    try {
      body(pause);
    } catch (const std::exception& error) {
      check::fail("the paused process", 0, error.what());
    }
    _exit(check::failures == 0 ? 0 : 1);
  }
  close(asks[1]);
  char byte = 0;
  while (read(asks[0], &byte, 1) == 1) {
    kill(child, SIGSTOP);
    std::this_thread::sleep_for(kPause);
    kill(child, SIGCONT);
    if (write(answers[1], &byte, 1) != 1) return false;
  }
  int status = 0;
  waitpid(child, &status, 0);
  for (const int end : {asks[0], answers[0], answers[1]}) close(end);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

TEST(a_device_that_submits_late_after_a_pause_fails_no_step) {
  EXPECT(goes_well([](const Pause& pause) {
    std::atomic<uint32_t> submitted{0}, done{0};
    ThreadPool pool(1);
    Handoff handoff({&submitted, &done, 1}, pool, [](int64_t, int64_t) {}, kPause / 2, [] {});
    handoff.begin(1);
    pause();
    submitted.store(1);
    while (!handoff.finish(milliseconds(1))) continue;
    EXPECT_EQ(done.load(), 1u);
  }));
}

TEST(experts_that_end_late_after_a_pause_fail_no_step) {
  EXPECT(goes_well([](const Pause& pause) {
    std::atomic<uint32_t> submitted{1}, done{0};
    ThreadPool pool(1);
    const auto compute = [&](int64_t, int64_t) {
      pause();
      std::this_thread::sleep_for(milliseconds(50));  // the other thread checks meanwhile
    };
    Handoff handoff({&submitted, &done, 1}, pool, compute, milliseconds(100), [] {});
    handoff.begin(1);
    while (!handoff.finish(milliseconds(1))) continue;
    EXPECT_EQ(done.load(), 1u);
  }));
}

TEST(the_clock_advances_when_read_and_counts_a_pause_as_one_gap) {
  EXPECT(goes_well([](const Pause& pause) {
    AwakeClock clock(kPause / 8);
    pause();
    EXPECT(clock.now() == kPause / 8);
    const auto end = std::chrono::steady_clock::now() + kPause / 2;
    while (std::chrono::steady_clock::now() < end) clock.now();
    EXPECT(clock.now() > kPause / 4);
  }));
}
