// A pause between two reads of a variable by a thread that spins on it.
#pragma once

namespace ballast {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace ballast
