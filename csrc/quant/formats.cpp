#include "quant/formats.h"

#include "quant/blocks256.h"
#include "quant/blocks32.h"
#include "quant/floats.h"

namespace ballast {
namespace {

template <class Block, int kBlockWeights>
void dequantize_blocks(const uint8_t* data, int64_t num_weights, float* out) {
  static_assert(alignof(Block) == 1, "blocks lie at any address of a mapped file");
  const Block* blocks = reinterpret_cast<const Block*>(data);
  for (int64_t i = 0; i < num_weights / kBlockWeights; ++i)
    dequantize_block(blocks[i], out + i * kBlockWeights);
}

template <class Block, int kBlockWeights>
constexpr FormatTraits quantized(const char* name, int ggml_type) {
  return {name, ggml_type, kBlockWeights, sizeof(Block), dequantize_blocks<Block, kBlockWeights>};
}

}  // namespace

const std::vector<FormatTraits>& all_formats() {
  static const std::vector<FormatTraits> formats = {
      {"F32", 0, 1, 4, dequantize_f32},         {"F16", 1, 1, 2, dequantize_f16},
      quantized<BlockQ4_0, 32>("Q4_0", 2),      quantized<BlockQ4_1, 32>("Q4_1", 3),
      quantized<BlockQ5_0, 32>("Q5_0", 6),      quantized<BlockQ5_1, 32>("Q5_1", 7),
      quantized<BlockQ8_0, 32>("Q8_0", 8),      quantized<BlockQ2_K, 256>("Q2_K", 10),
      quantized<BlockQ3_K, 256>("Q3_K", 11),    quantized<BlockQ4_K, 256>("Q4_K", 12),
      quantized<BlockQ5_K, 256>("Q5_K", 13),    quantized<BlockQ6_K, 256>("Q6_K", 14),
      quantized<BlockIQ4_NL, 32>("IQ4_NL", 20), quantized<BlockIQ4_XS, 256>("IQ4_XS", 23),
      {"BF16", 30, 1, 2, dequantize_bf16},
  };
  return formats;
}

const FormatTraits* find_format(int ggml_type) {
  for (const FormatTraits& format : all_formats()) {
    if (format.ggml_type == ggml_type) return &format;
  }
  return nullptr;
}

}  // namespace ballast
