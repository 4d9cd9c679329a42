#include "quant/formats.h"

#include "quant/blocks256.h"
#include "quant/blocks32.h"
#include "quant/floats.h"
#include "quant/grid_blocks.h"

namespace ballast {
namespace {

template <class Block, int kBlockWeights, int kBlockBytes>
void dequantize_blocks(const uint8_t* data, int64_t num_weights, float* out) {
  static_assert(sizeof(Block) == kBlockBytes, "format_list.h has the block's size as GGUF has it");
  static_assert(alignof(Block) == 1, "blocks may be at any address of a mapped file");
  const Block* blocks = reinterpret_cast<const Block*>(data);
  for (int64_t i = 0; i < num_weights / kBlockWeights; ++i)
    dequantize_block(blocks[i], out + i * kBlockWeights);
}

#define BALLAST_TYPE(name, type, ...) type,
constexpr int kTypes[] = {BALLAST_FORMATS(BALLAST_TYPE, BALLAST_TYPE)};
#undef BALLAST_TYPE

constexpr bool types_ascend() {
  for (int i = 1; i < kNumPanelKinds; ++i) {
    if (kTypes[i - 1] >= kTypes[i]) return false;
  }
  return true;
}
static_assert(types_ascend(), "format_list.h has each of GGUF's types once, in ascending order");

// Per weight, including scales (decision 80).
constexpr double kMostBitsForOneByte = 4.5;

}  // namespace

int default_activation_bytes(const FormatTraits& format) {
  return 8.0 * format.block_bytes <= kMostBitsForOneByte * format.block_weights ? 1 : 2;
}

const std::vector<FormatTraits>& all_formats() {
#define BALLAST_FLOATS(name, type, bytes) \
  {#name, type, PanelKind::k##name, nullptr, 1, bytes, dequantize_##name},
#define BALLAST_QUANTIZED(name, type, weights, bytes, ...) \
  {#name,                                                  \
   type,                                                   \
   PanelKind::k##name,                                     \
   &kPanel##name,                                          \
   weights,                                                \
   bytes,                                                  \
   dequantize_blocks<Block##name, weights, bytes>},
  static const std::vector<FormatTraits> formats = {BALLAST_FORMATS(BALLAST_FLOATS, BALLAST_QUANTIZED)};
#undef BALLAST_QUANTIZED
#undef BALLAST_FLOATS
  return formats;
}

const FormatTraits* find_format(int ggml_type) {
  for (const FormatTraits& format : all_formats()) {
    if (format.ggml_type == ggml_type) return &format;
  }
  return nullptr;
}

}  // namespace ballast
