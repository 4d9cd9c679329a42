#include "base/event_count.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace ballast {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

// Whatever ends the system call, a signal included, the caller checks its condition again.
void EventCount::sleep_while(uint32_t seen) {
  syscall(SYS_futex, &num_wakes_, FUTEX_WAIT_PRIVATE, seen, nullptr);
}

void EventCount::wake_sleepers() { syscall(SYS_futex, &num_wakes_, FUTEX_WAKE_PRIVATE, INT_MAX); }

}  // namespace ballast
