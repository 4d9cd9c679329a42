#include "ops/mla_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "numa/index_range.h"
#include "ops/vector.h"

namespace ballast {
namespace {

// Heads of one token that share a pass over the cache.
constexpr int64_t kGroupHeads = 4;
// Positions between two corrections of the running maximum. Spans begin at multiples of this in the sequence,
// so the arithmetic of a token does not depend on how its sequence was cut into steps, chunks or blocks.
constexpr int64_t kSpanTokens = 32;

struct Span {
  const float* rows[kSpanTokens];
  int64_t size;
};

Span locate(const PagedBatch& batch, const float* cache, int64_t row_width, int64_t request, int64_t begin,
            int64_t end) {
  Span span;
  span.size = end - begin;
  const int32_t* blocks = batch.kv_indices + batch.kv_indptr[request];
  for (int64_t position = begin; position < end; ++position) {
    const int64_t slot =
        blocks[position / batch.block_tokens] * batch.block_tokens + position % batch.block_tokens;
    span.rows[position - begin] = cache + slot * row_width;
  }
  return span;
}

// Softmax seen so far: weights are relative to `maximum`, `sum` is theirs.
struct RunningSoftmax {
  float maximum = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;

  // Turns a span's scores into weights; `out` is brought to the new maximum first.
  void take(float* scores, int64_t size, float* out, int64_t width) {
    const float new_maximum = std::max(maximum, *std::max_element(scores, scores + size));
    const float correction = std::exp(maximum - new_maximum);
    for (int64_t i = 0; i < width; ++i) out[i] *= correction;
    sum *= correction;
    for (int64_t i = 0; i < size; ++i) {
      scores[i] = std::exp(scores[i] - new_maximum);
      sum += scores[i];
    }
    maximum = new_maximum;
  }
};

void attend(const float* const* queries, float* const* outs, int64_t num_heads, const float* cache,
            const PagedBatch& batch, const AttentionShape& shape, int64_t request, int64_t num_positions) {
  RunningSoftmax softmax[kGroupHeads];
  float scores[kGroupHeads][kSpanTokens];
  for (int64_t head = 0; head < num_heads; ++head) std::fill_n(outs[head], shape.value_width, 0.0f);
  const Chunks spans(num_positions, kSpanTokens);
  for (int64_t s = 0; s < spans.count(); ++s) {
    const Span span = locate(batch, cache, shape.row_width, request, spans[s].begin, spans[s].end);
    for (int64_t i = 0; i < span.size; ++i) {
      if (num_heads == kGroupHeads) {
        float products[kGroupHeads];
        dot<kGroupHeads>(span.rows[i], queries, shape.row_width, products);
        for (int64_t head = 0; head < kGroupHeads; ++head) scores[head][i] = products[head] * shape.scale;
      } else {
        for (int64_t head = 0; head < num_heads; ++head) {
          scores[head][i] = dot(span.rows[i], queries[head], shape.row_width) * shape.scale;
        }
      }
    }
    for (int64_t head = 0; head < num_heads; ++head) {
      softmax[head].take(scores[head], span.size, outs[head], shape.value_width);
      add_scaled(scores[head], span.rows, span.size, shape.value_width, outs[head]);
    }
  }
  for (int64_t head = 0; head < num_heads; ++head) {
    for (int64_t i = 0; i < shape.value_width; ++i) outs[head][i] /= softmax[head].sum;
  }
}

std::vector<int64_t> request_of_tokens(const PagedBatch& batch) {
  std::vector<int64_t> requests;
  requests.reserve(static_cast<size_t>(batch.num_tokens));
  for (int64_t request = 0; request < batch.num_requests; ++request) {
    const int64_t num_tokens = batch.query_indptr[request + 1] - batch.query_indptr[request];
    requests.insert(requests.end(), static_cast<size_t>(num_tokens), request);
  }
  return requests;
}

void check_indptr(const char* name, const int32_t* indptr, int64_t num_requests, int64_t total) {
  const std::string what = name;
  if (indptr[0] != 0)
    throw std::invalid_argument(what + "[0] is " + std::to_string(indptr[0]) + "; expected 0");
  for (int64_t r = 0; r < num_requests; ++r) {
    if (indptr[r + 1] < indptr[r]) {
      throw std::invalid_argument(what + "[" + std::to_string(r + 1) + "] is " +
                                  std::to_string(indptr[r + 1]) +
                                  "; expected at least the entry before it, " + std::to_string(indptr[r]));
    }
  }
  if (indptr[num_requests] != total) {
    throw std::invalid_argument(what + "[" + std::to_string(num_requests) + "] is " +
                                std::to_string(indptr[num_requests]) + "; expected " + std::to_string(total));
  }
}

}  // namespace

void PagedBatch::check() const {
  check_indptr("query_indptr", query_indptr, num_requests, num_tokens);
  check_indptr("kv_indptr", kv_indptr, num_requests, num_indices);
  const int64_t num_blocks = num_slots / block_tokens;
  for (int64_t i = 0; i < num_indices; ++i) {
    if (kv_indices[i] < 0 || kv_indices[i] >= num_blocks) {
      throw std::invalid_argument("kv_indices[" + std::to_string(i) + "] is " +
                                  std::to_string(kv_indices[i]) + "; expected 0 to " +
                                  std::to_string(num_blocks - 1));
    }
  }
  for (int64_t request = 0; request < num_requests; ++request) {
    const int64_t capacity = (kv_indptr[request + 1] - kv_indptr[request]) * block_tokens;
    for (int64_t token = query_indptr[request]; token < query_indptr[request + 1]; ++token) {
      if (positions[token] < 0 || positions[token] >= capacity) {
        throw std::invalid_argument("positions[" + std::to_string(token) + "] is " +
                                    std::to_string(positions[token]) + "; expected 0 to " +
                                    std::to_string(capacity - 1) + ", what the blocks of request " +
                                    std::to_string(request) + " hold");
      }
    }
  }
}

void mla_attention(ThreadPool& pool, const float* query, const float* cache, const PagedBatch& batch,
                   const AttentionShape& shape, float* out) {
  const std::vector<int64_t> requests = request_of_tokens(batch);
  const Chunks groups(shape.num_heads, kGroupHeads);
  pool.parallel_for(batch.num_tokens * groups.count(), [&](int64_t task) {
    const int64_t token = task / groups.count();
    const IndexRange heads = groups[task % groups.count()];
    const float* queries[kGroupHeads] = {};
    float* outs[kGroupHeads] = {};
    for (int64_t head = heads.begin; head < heads.end; ++head) {
      queries[head - heads.begin] = query + (token * shape.num_heads + head) * shape.row_width;
      outs[head - heads.begin] = out + (token * shape.num_heads + head) * shape.value_width;
    }
    attend(queries, outs, heads.size(), cache, batch, shape, requests[static_cast<size_t>(token)],
           int64_t{batch.positions[token]} + 1);
  });
}

}  // namespace ballast
