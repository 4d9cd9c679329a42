// Integer dot products of the codes of a group with the activations of several tokens.
#pragma once

#include "cpu/kernels.h"
#include "cpu/panels/packed_panels-inl.h"
#include "cpu/shared/integers-inl.h"

namespace ballast {
namespace {

// Independent sums of a dot product. With few tokens, one sum would wait for its own latency.
template <const QuantLayout& kLayout, int kVectors, int kTokens>
constexpr int num_chains() {
  return kVectors * kTokens <= 2 && kLayout.subs_per_group() == 1 ? 2 : 1;
}

// words [token][plane][vector] = the products of quads kQuad…kEnd, two products of a quad per word.
template <bool kSigned, int kVectors, int kTokens, int kBytes, int kQuad, int kEnd, bool kIsFirst,
          class Group>
BALLAST_INLINE void sum_in_words(const Group& group, const ActivationBlock<kBytes>* const* blocks,
                                 int64_t index, Bytes (*words)[kBytes][kVectors]) {
  if constexpr (kQuad < kEnd) {
    if constexpr (kQuad % 2 == 0) prefetch_quads<kQuad>(group);
    Bytes codes[kVectors];
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) codes[vector] = quad_of<kQuad>(group, vector);
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 2
      for (int plane = 0; plane < kBytes; ++plane) {
        const Bytes four = broadcast_four(blocks[token][index].quants + plane * kGroupCols + 4 * kQuad);
#pragma GCC unroll 4
        for (int vector = 0; vector < kVectors; ++vector) {
          add_in_words<kSigned>(words[token][plane][vector], kIsFirst, codes[vector], four);
        }
      }
    }
    sum_in_words<kSigned, kVectors, kTokens, kBytes, kQuad + 1, kEnd, false>(group, blocks, index, words);
  }
}

// dots [token][0][0][vector] += quads kQuad…kEnd, with the activations from join_digits.
template <int kVectors, int kTokens, int kQuad, int kEnd, class Group, class Dots>
BALLAST_INLINE void add_quads_of_numbers(const Group& group, const int16_t (&numbers)[kTokens][kGroupCols],
                                         Dots* dots) {
  if constexpr (kQuad < kEnd) {
    if constexpr (kQuad % 2 == 0) prefetch_quads<kQuad>(group);
    Bytes even[kVectors];
    Bytes odd[kVectors];
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      const Bytes quad = quad_of<kQuad>(group, vector);
      even[vector] = high_bytes_of_words(shift_left<8>(quad));
      odd[vector] = high_bytes_of_words(quad);
    }
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token)
      add_quad_of_numbers(dots[token][0][0], even, odd, numbers[token] + 2 * kQuad);
    add_quads_of_numbers<kVectors, kTokens, kQuad + 1, kEnd>(group, numbers, dots);
  }
}

// Adds quads kQuad…kEnd: each is decoded once for all tokens, each activation loaded once for all vectors.
// dots [token][chain][plane][vector]; a plane is one byte of the activations.
template <const QuantLayout& kLayout, int kVectors, int kTokens, int kBytes, int kQuad, int kEnd, class Group>
BALLAST_INLINE void add_quads(const Group& group, const ActivationBlock<kBytes>* const* blocks, int64_t index,
                              Ints (*dots)[num_chains<kLayout, kVectors, kTokens>()][kBytes][kVectors]) {
  constexpr int kLargest = Group::kLargestCode;
  constexpr int kRunEnd = kQuad + static_cast<int>(smaller(quads_in_words(kLargest), kEnd - kQuad));
  if constexpr (kRunEnd - kQuad > 2) {
    Bytes words[kTokens][kBytes][kVectors];
    sum_in_words<is_signed(kLayout), kVectors, kTokens, kBytes, kQuad, kRunEnd, true>(group, blocks, index,
                                                                                      words);
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 2
      for (int plane = 0; plane < kBytes; ++plane) {
#pragma GCC unroll 4
        for (int vector = 0; vector < kVectors; ++vector) {
          Ints& dot = dots[token][0][plane][vector];
          dot = add_word_products(dot, words[token][plane][vector], words_of(1));
        }
      }
    }
    add_quads<kLayout, kVectors, kTokens, kBytes, kRunEnd, kEnd>(group, blocks, index, dots);
  } else if constexpr (kQuad < kEnd) {
    constexpr int kChain = kQuad / 2 % num_chains<kLayout, kVectors, kTokens>();
    prefetch_quads<kQuad>(group);
    using Codes = decltype(quad_of<kQuad>(group, 0));
    Codes first[kVectors];
    Codes second[kVectors];
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      first[vector] = quad_of<kQuad>(group, vector);
      second[vector] = quad_of<kQuad + 1>(group, vector);
    }
#pragma GCC unroll 16
    for (int token = 0; token < kTokens; ++token) {
#pragma GCC unroll 2
      for (int plane = 0; plane < kBytes; ++plane) {
        add_two_quads<is_signed(kLayout), kLargest, kVectors>(
            dots[token][kChain][plane], first, second,
            blocks[token][index].quants + plane * kGroupCols + 4 * kQuad);
      }
    }
    add_quads<kLayout, kVectors, kTokens, kBytes, kQuad + 2, kEnd>(group, blocks, index, dots);
  }
}

// Initializes dots [chain][plane][vector] of one token.
template <int kVectors, int kChains, int kBytes>
BALLAST_INLINE void begin_dots(Ints first, Ints (&dots)[kChains][kBytes][kVectors]) {
#pragma GCC unroll 4
  for (int vector = 0; vector < kVectors; ++vector) {
#pragma GCC unroll 2
    for (auto& chain : dots) {
      chain[0][vector] = zero_ints();
      chain[kBytes - 1][vector] = zero_ints();
    }
    dots[0][kBytes - 1][vector] = first;
  }
}

// The final dot product.
template <int kVectors, int kChains, int kBytes>
BALLAST_INLINE Ints end_dots(const Ints (&dots)[kChains][kBytes][kVectors], int vector) {
  const auto sum_of_chains = [&](int plane) {
    const Ints one = dots[0][plane][vector];
    return kChains == 1 ? one : add_ints(one, dots[kChains - 1][plane][vector]);
  };
  const Ints dot = sum_of_chains(kBytes - 1);
  if constexpr (kBytes == 2) return add_ints(dot, times_digit_base(sum_of_chains(0)));
  return dot;
}

}  // namespace
}  // namespace ballast
