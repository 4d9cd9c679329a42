// All formats that a matrix may have, one per line. Everything that depends on the set of formats is
// generated from this list: panel kinds and layouts (cpu/panel_layout.h), kernel tables
// (cpu/panels/table-inl.h, cpu/amx/table-inl.h), readers and packing (quant/formats.cpp, quant/panels.cpp),
// and the formats in Python (_core.kernels.formats).
//
//   FLOATS(name, type, block bytes)
//
// A block is one weight. dequantize_<name> (quant/floats.h) and <name>AsFloats
// (cpu/panels/multiply_floats-inl.h) read it.
//
//   QUANTIZED(name, type, block weights, block bytes, the members of its QuantLayout)
//
// A block is a Block<name>. dequantize_block (quant/blocks32.h, quant/blocks256.h, quant/grid_blocks.h) reads
// it, and read_raw (quant/raw_blocks.h), or read_points (quant/grid_blocks.h) if codes are grid points.
//
// `name` and `type` are GGUF's name and number. Lines are sorted by `type`.
#pragma once

// clang-format off
#define BALLAST_FORMATS(FLOATS, QUANTIZED)                                                     \
  /*        name    type  weights  bytes  bits  sub_block  offset  scales    minimum  table */ \
  FLOATS(   F32,      0,             4)                                                        \
  FLOATS(   F16,      1,             2)                                                        \
  QUANTIZED(Q4_0,     2,     32,    18,    4,       32,      8, kFlat,    false,   kNone)      \
  QUANTIZED(Q4_1,     3,     32,    20,    4,       32,      0, kFlat,    true,    kNone)      \
  QUANTIZED(Q5_0,     6,     32,    22,    5,       32,     16, kFlat,    false,   kNone)      \
  QUANTIZED(Q5_1,     7,     32,    24,    5,       32,      0, kFlat,    true,    kNone)      \
  QUANTIZED(Q8_0,     8,     32,    34,    8,       32,    128, kFlat,    false,   kNone)      \
  QUANTIZED(Q2_K,    10,    256,    84,    2,       16,      0, kNibbles, true,    kNone)      \
  QUANTIZED(Q3_K,    11,    256,   110,    3,       16,      4, kNested,  false,   kNone)      \
  QUANTIZED(Q4_K,    12,    256,   144,    4,       32,      0, kNested,  true,    kNone)      \
  QUANTIZED(Q5_K,    13,    256,   176,    5,       32,      0, kNested,  true,    kNone)      \
  QUANTIZED(Q6_K,    14,    256,   210,    6,       16,     32, kNested,  false,   kNone)      \
  QUANTIZED(IQ2_XXS, 16,    256,    66,    8,       32,    128, kOddInCodes, false, kGrid256x8)  \
  QUANTIZED(IQ2_XS,  17,    256,    74,    8,       16,    128, kOddNibbles, false, kGrid512x8)  \
  QUANTIZED(IQ3_XXS, 18,    256,    98,    8,       32,    128, kOddInCodes, false, kGrid256x4)  \
  QUANTIZED(IQ1_S,   19,    256,    50,    8,       32,    128, kOddInCodes, false, kGrid2048x8) \
  QUANTIZED(IQ4_NL,  20,     32,    18,    4,       32,    128, kFlat,    false,   kIQ4)       \
  QUANTIZED(IQ3_S,   21,    256,   110,    8,       32,    128, kOddNibbles, false, kGrid512x4)  \
  QUANTIZED(IQ2_S,   22,    256,    82,    8,       16,    128, kOddNibbles, false, kGrid1024x8) \
  QUANTIZED(IQ4_XS,  23,    256,   136,    4,       32,    128, kNested,  false,   kIQ4)       \
  QUANTIZED(IQ1_M,   29,    256,    56,    8,       16,    128, kOddNibbles, false, kGrid2048x8) \
  FLOATS(   BF16,    30,             2)                                                        \
  QUANTIZED(TQ1_0,   34,    256,    54,    2,       32,      1, kBlock,      false, kTrits)      \
  QUANTIZED(TQ2_0,   35,    256,    66,    2,       32,      1, kBlock,      false, kNone)       \
  QUANTIZED(MXFP4,   39,     32,    17,    4,       32,    128, kPowers,  false,   kE2M1)      \
  QUANTIZED(NVFP4,   40,     64,    36,    4,       16,    128, kE4M3,    false,   kE2M1)
// clang-format on
