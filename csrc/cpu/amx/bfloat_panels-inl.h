// Multiplies bfloat16 panels with up to 16 tokens at a time. A float activation becomes three bfloat16 terms
// with the same sum, so only sums are rounded. Their order is fixed, but differs from the vector kernels.
#pragma once

#include "cpu/amx/tile_tokens.h"
#include "cpu/panels/prefetch-inl.h"
#include "cpu/shared/integers-inl.h"

namespace ballast {
namespace {

constexpr int kTerms = 3;
constexpr int kStepCols = 32;  // columns per product of tiles
constexpr int kChunkSteps = 16;
constexpr int kChunkCols = kStepCols * kChunkSteps;

// Columns of up to kMostTokens tokens, split into terms, and of a panel. The rest of the arrays is zero.
using SplitTokens = uint16_t[kChunkSteps][kMostTokens][kTerms][kStepCols];
using PairedRows = uint16_t[kChunkSteps][kStepCols / 2][2 * kPanelRows];  // two columns of a row per pair

BALLAST_INLINE void split_step(const float* x, int64_t num_cols, uint16_t (&terms)[kTerms][kStepCols]) {
  const __mmask16 first = static_cast<__mmask16>(num_cols >= 16 ? 0xffff : (1 << num_cols) - 1);
  const __mmask16 second = static_cast<__mmask16>(num_cols >= 32  ? 0xffff
                                                  : num_cols > 16 ? (1 << (num_cols - 16)) - 1
                                                                  : 0);
  __m512 rest[2] = {_mm512_maskz_loadu_ps(first, x), _mm512_maskz_loadu_ps(second, x + 16)};
  for (int term = 0; term < kTerms; ++term) {
    for (int half = 0; half < 2; ++half) {
      const __m512i upper = _mm512_and_si512(_mm512_castps_si512(rest[half]), _mm512_set1_epi32(~0xffff));
      rest[half] = subtract(rest[half], _mm512_castsi512_ps(upper));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(terms[term] + 16 * half),
                          _mm512_cvtepi32_epi16(_mm512_srli_epi32(upper, 16)));
    }
  }
}

void split_tokens(const void* const* tokens, int64_t num_tokens, int64_t begin, int64_t num_cols,
                  SplitTokens& out) {
  for (int64_t token = 0; token < num_tokens; ++token) {
    const float* x = static_cast<const float*>(tokens[token]) + begin;
    for (int64_t col = 0; col < num_cols; col += kStepCols)
      split_step(x + col, num_cols - col, out[col / kStepCols][token]);
  }
}

void pair_rows(const uint8_t* panel, int64_t num_cols, const Prefetching& prefetching, PairedRows& out) {
  const __m512i from_both = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                             7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  constexpr int64_t kPairBytes = 2 * kPanelRows * sizeof(uint16_t);
  const int64_t num_pairs = num_cols / 2;
  uint16_t (*lines)[2 * kPanelRows] = out[0];
  for (int64_t pair = 0; pair < num_pairs; ++pair, panel += kPairBytes) {
    prefetch(panel + prefetching.bytes_ahead, 1, prefetching.to);
    _mm512_storeu_si512(lines[pair], _mm512_permutexvar_epi16(from_both, _mm512_loadu_si512(panel)));
  }
  int64_t line = num_pairs;
  if (num_cols % 2 != 0) {
    const __m256i last = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel));
    _mm512_storeu_si512(lines[line++], _mm512_cvtepu16_epi32(last));
  }
  for (; line % (kStepCols / 2) != 0; ++line) _mm512_storeu_si512(lines[line], _mm512_setzero_si512());
}

// Tiles: the sums of each term in 0…2, the columns of its tokens in 3…5, the rows in 6. Separate sums avoid a
// dependency of each product on the previous one.
constexpr int kRowTile = 2 * kTerms;

void configure_bfloat_tiles(int64_t num_tokens) {
  TileConfig config;
  for (int tile = 0; tile <= kRowTile; ++tile) {
    config.rows[tile] = static_cast<uint8_t>(tile == kRowTile ? kStepCols / 2 : num_tokens);
    config.row_bytes[tile] = 64;
  }
  configure_tiles(config);
}

template <int kTerm = 0>
BALLAST_INLINE void zero_parts() {
  if constexpr (kTerm < kTerms) {
    zero_tile<kTerm>();
    zero_parts<kTerm + 1>();
  }
}

template <int kTerm = 0>
BALLAST_INLINE void add_terms(const uint16_t (*terms)[kStepCols], int64_t token_stride) {
  if constexpr (kTerm < kTerms) {
    load_tile<kTerms + kTerm>(terms[kTerm], token_stride);
    add_bfloat_products<kTerm, kTerms + kTerm, kRowTile>();
    add_terms<kTerm + 1>(terms, token_stride);
  }
}

// sums [token][16] += a chunk's products with up to kTileTokens tokens.
BALLAST_INLINE void add_steps(const PairedRows& rows, const SplitTokens& split, int64_t token,
                              int64_t num_tokens, int64_t num_steps, float* sums) {
  zero_parts();
  for (int64_t step = 0; step < num_steps; ++step) {
    load_tile<kRowTile>(rows[step], sizeof(rows[0][0]));
    add_terms(split[step][token], sizeof(split[0][0]));
  }
  alignas(64) float terms[kTerms][kTileTokens][kPanelRows];
  store_tile<0>(terms[0], sizeof(terms[0][0]));
  store_tile<1>(terms[1], sizeof(terms[0][0]));
  store_tile<2>(terms[2], sizeof(terms[0][0]));
  for (int64_t i = 0; i < num_tokens; ++i) {
    const Floats two = add(load_floats(terms[2][i]), load_floats(terms[1][i]));
    float* to = sums + i * kPanelRows;
    store_floats(to, add(load_floats(to), add(two, load_floats(terms[0][i]))));
  }
}

// Up to kMostTokens tokens.
void multiply_bfloat_block(const PanelRun& run, const void* const* tokens, int64_t num_tokens,
                           const PanelProducts& out) {
  alignas(64) SplitTokens split;
  alignas(64) PairedRows rows;
  for (int64_t begin = 0; begin < run.cols; begin += kChunkCols) {
    const int64_t num_cols = smaller(kChunkCols, run.cols - begin);
    const int64_t num_steps = divide_up(num_cols, kStepCols);
    split_tokens(tokens, num_tokens, begin, num_cols, split);
    for (int64_t index = 0; index < run.count; ++index) {
      pair_rows(panel_of(run, index) + begin * kPanelRows * int64_t{sizeof(uint16_t)}, num_cols,
                run.prefetching, rows);
      for (int64_t token = 0; token < num_tokens; token += kTileTokens) {
        const int64_t size = smaller(kTileTokens, num_tokens - token);
        float* sums = products_of(out, index) + token * kPanelRows;
        if (begin == 0) __builtin_memset(sums, 0, static_cast<unsigned long>(size) * kPanelRows * 4);
        if (token == 0 || size < kTileTokens) configure_bfloat_tiles(size);
        add_steps(rows, split, token, size, num_steps, sums);
      }
    }
  }
  release_tiles();
}

void multiply_bfloats(const PanelRun& run, const void* const* tokens, int64_t num_tokens,
                      const PanelProducts& out) {
  for (int64_t token = 0; token < num_tokens; token += kMostTokens) {
    multiply_bfloat_block(run, tokens + token, smaller(kMostTokens, num_tokens - token),
                          from_token(out, token));
  }
}

}  // namespace
}  // namespace ballast
