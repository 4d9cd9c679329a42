#include "cpu/cpu_features.h"

#include <utility>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ballast {

std::vector<std::string> flags_of(CpuFeatures features) {
  static const std::vector<std::pair<CpuFeatures, std::vector<std::string>>> all = {
      {kAvx2, {"avx2", "fma", "f16c"}},
      {kAvx512, {"avx512f", "avx512bw", "avx512dq", "avx512vl"}},
      {kAvx512Vnni, {"avx512_vnni"}},
      {kAmx, {"amx_tile", "amx_int8", "amx_bf16"}},
  };
  std::vector<std::string> flags;
  for (const auto& [feature, names] : all) {
    if (features & feature) flags.insert(flags.end(), names.begin(), names.end());
  }
  return flags;
}

#if defined(__x86_64__)
namespace {

struct Leaf {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// Zeros if the CPU does not know the leaf.
Leaf cpuid(uint32_t leaf, uint32_t subleaf) {
  Leaf registers;
  __get_cpuid_count(leaf, subleaf, &registers.eax, &registers.ebx, &registers.ecx, &registers.edx);
  return registers;
}

// The registers that the system saves at a thread switch (XCR0). Valid only if CPUID reports OSXSAVE.
uint64_t saved_registers() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

bool has_all(uint64_t bits, uint64_t wanted) { return (bits & wanted) == wanted; }

// Tiles add 8 KiB to the saved state of a thread. The kernel permits them per process, on request
// (Documentation/arch/x86/xstate.rst).
bool kernel_permits_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

constexpr uint32_t bit(int n) { return uint32_t{1} << n; }

}  // namespace

CpuFeatures usable_cpu_features() {
  const Leaf one = cpuid(1, 0);
  const Leaf seven = cpuid(7, 0);
  if (!has_all(one.ecx, bit(27))) return 0;  // OSXSAVE
  const uint64_t saved = saved_registers();
  constexpr uint64_t kYmm = 0x06;  // XMM and the upper halves of YMM
  constexpr uint64_t kZmm = 0xe6;  // also mask registers, upper halves of ZMM, and ZMM16…31
  CpuFeatures features = 0;
  if (has_all(saved, kYmm) && has_all(one.ecx, bit(12) | bit(28) | bit(29)) && has_all(seven.ebx, bit(5))) {
    features |= kAvx2;
  }
  if ((features & kAvx2) && has_all(saved, kZmm) &&
      has_all(seven.ebx, bit(16) | bit(17) | bit(30) | bit(31))) {
    features |= kAvx512;
    if (has_all(seven.ecx, bit(11))) features |= kAvx512Vnni;
  }
  constexpr uint64_t kTiles = 0x60000;  // their shapes and their data
  if (has_all(saved, kTiles) && has_all(seven.edx, bit(22) | bit(24) | bit(25)) && kernel_permits_tiles()) {
    features |= kAmx;
  }
  return features;
}
#else
CpuFeatures usable_cpu_features() { return 0; }
#endif

}  // namespace ballast
