// The weight formats of GGUF that can be read, as a table made of cpu/format_list.h. Block layouts:
// blocks32.h, blocks256.h, floats.h.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/panel_layout.h"

namespace ballast {

struct FormatTraits {
  const char* name;  // as GGUF spells it
  int ggml_type;     // GGUF's number
  PanelKind kind;
  const QuantLayout* layout;  // of its panels; null for floats
  int block_weights;
  int block_bytes;
  // num_weights: a multiple of block_weights. The data may be at any address.
  void (*dequantize_row)(const uint8_t* data, int64_t num_weights, float* out);
};

// Bytes that activations are rounded to for products with such weights, unless the user says otherwise: one
// where that adds at most a tenth to the error that the weights have already. Their error follows from the
// bits that a weight takes in a file. Any number for floats, whose activations are not rounded.
int default_activation_bytes(const FormatTraits& format);

// In the order of PanelKind.
const std::vector<FormatTraits>& all_formats();

// Null when the type is not supported.
const FormatTraits* find_format(int ggml_type);

}  // namespace ballast
