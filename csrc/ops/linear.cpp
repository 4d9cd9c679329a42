#include "ops/linear.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/index_range.h"
#include "base/scratch.h"
#include "ops/activations.h"
#include "ops/tile.h"
#include "ops/vector.h"

namespace ballast {
namespace {

// Columns of a slice: a multiple of every format's block, and few enough that a token's slice of output stays
// in the first-level cache.
constexpr int64_t kSliceCols = 512;

// out [T, H, rows of a head] = scale times the products, x [T, H, cols]. A task is a run of panels and a
// block of tokens; the blocks of one run follow each other, so that its weights are read from memory once.
void multiply_panels(ThreadPool& pool, const float* x, int64_t num_tokens, const Panels& panels, float scale,
                     float* out) {
  const int64_t num_heads = panels.heads().num_heads;
  const int64_t num_rows = panels.head_rows();
  const Activations activations(pool, panels, x, num_tokens * num_heads);
  std::vector<const void*> by_head(static_cast<size_t>(num_heads * num_tokens));  // [H, T]
  for (int64_t head = 0; head < num_heads; ++head) {
    for (int64_t token = 0; token < num_tokens; ++token) {
      by_head[static_cast<size_t>(head * num_tokens + token)] = activations.row(token * num_heads + head);
    }
  }
  const Chunks runs(panels.panels_per_head(),
                    panels_per_task(panels.panels_per_head(), num_heads, num_tokens, pool.num_threads()));
  const Chunks blocks(num_tokens, tokens_per_block(panels));
  pool.parallel_for(num_heads * runs.count() * blocks.count(), [&](int64_t task) {
    const IndexRange block = blocks[task % blocks.count()];
    const int64_t head = task / blocks.count() / runs.count();
    const IndexRange run = runs[task / blocks.count() % runs.count()];
    const Scratch<float> scratch(run.size() * block.size() * kPanelRows);
    float* products = scratch.get();
    panels.multiply(head, run, by_head.data() + head * num_tokens + block.begin, block.size(), products);
    scale_products(scale, run.size() * block.size() * kPanelRows, products);
    for (int64_t token = 0; token < block.size(); ++token, products += kPanelRows) {
      float* row = out + ((block.begin + token) * num_heads + head) * num_rows;
      for (int64_t index = run.begin; index < run.end; ++index) {
        const int64_t first = index * kPanelRows;
        copy_products(products + (index - run.begin) * block.size() * kPanelRows,
                      std::min<int64_t>(kPanelRows, num_rows - first), row + first);
      }
    }
  });
}

}  // namespace

void linear(ThreadPool& pool, const float* x, int64_t num_tokens, const Matrix& weight, float* out) {
  head_linear(pool, x, num_tokens, weight, {1, 0, 0, weight.rows()}, out);
}

void head_linear(ThreadPool& pool, const float* x, int64_t num_tokens, const Matrix& weight,
                 const HeadRows& heads, float* out) {
  BALLAST_CHECK(weight.num_scales() <= 1);
  if (num_tokens == 0) return;
  const float scale = weight.scale();
  if (const Panels* panels = weight.panels()) {
    BALLAST_CHECK(panels->heads() == heads && panels->panel_rows() == PanelRows::kAsStored);
    return multiply_panels(pool, x, num_tokens, *panels, scale, out);
  }
  const int64_t cols = weight.cols();
  std::vector<const float*> tokens(static_cast<size_t>(heads.num_heads * num_tokens));  // [H, T]
  for (int64_t head = 0; head < heads.num_heads; ++head) {
    for (int64_t token = 0; token < num_tokens; ++token) {
      tokens[static_cast<size_t>(head * num_tokens + token)] = x + (token * heads.num_heads + head) * cols;
    }
  }
  const Chunks tiles(heads.num_rows, kTileRows);
  pool.parallel_for(heads.num_heads * tiles.count(), [&](int64_t task) {
    const int64_t head = task / tiles.count();
    const IndexRange tile = tiles[task % tiles.count()];
    const Scratch<float> scratch(kTileRows * cols);
    float* rows = scratch.get();
    dequantize_rows(weight, {heads.begin(head) + tile.begin, heads.begin(head) + tile.end}, rows);
    multiply_tile(rows, tile.size(), cols, tokens.data() + head * num_tokens, num_tokens,
                  [&](int64_t token, int64_t row, float product) {
                    out[(token * heads.num_heads + head) * heads.num_rows + tile.begin + row] =
                        scale * product;
                  });
  });
}

void head_linear_transposed(ThreadPool& pool, const float* x, int64_t num_tokens, const Matrix& weight,
                            const HeadRows& heads, float* out) {
  BALLAST_CHECK(weight.num_scales() <= 1);
  if (num_tokens == 0) return;
  if (const Panels* panels = weight.panels()) {
    BALLAST_CHECK(panels->heads() == heads && panels->panel_rows() == PanelRows::kTransposed);
    return multiply_panels(pool, x, num_tokens, *panels, weight.scale(), out);
  }
  const int64_t cols = weight.cols();
  const Chunks slices(cols, kSliceCols);
  const Chunks tiles(heads.num_rows, kTileRows);
  pool.parallel_for(heads.num_heads * slices.count(), [&](int64_t task) {
    const int64_t head = task / slices.count();
    const IndexRange slice = slices[task % slices.count()];
    const auto out_slice = [&](int64_t token) {
      return out + (token * heads.num_heads + head) * cols + slice.begin;
    };
    for (int64_t token = 0; token < num_tokens; ++token) std::fill_n(out_slice(token), slice.size(), 0.0f);

    const Scratch<float> scratch(kTileRows * kSliceCols);
    float* buffer = scratch.get();
    const float* rows[kTileRows];
    for (int64_t i = 0; i < kTileRows; ++i) rows[i] = buffer + i * kSliceCols;
    for (int64_t t = 0; t < tiles.count(); ++t) {
      const IndexRange tile = tiles[t];
      for (int64_t i = 0; i < tile.size(); ++i) {
        weight.dequantize_slice(heads.begin(head) + tile.begin + i, slice.begin, slice.end,
                                buffer + i * kSliceCols);
      }
      for (int64_t token = 0; token < num_tokens; ++token) {
        const float* scales = x + (token * heads.num_heads + head) * heads.num_rows + tile.begin;
        add_scaled(scales, rows, tile.size(), slice.size(), out_slice(token));
      }
    }
    for (int64_t token = 0; token < num_tokens; ++token)
      scale_products(weight.scale(), slice.size(), out_slice(token));
  });
}

}  // namespace ballast
