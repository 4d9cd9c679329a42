// Multiplies codes by the scale of their sub-block (QuantLayout::scales_codes), once for all tokens. The
// products of a whole super-block then add up as integers.
#pragma once

#include "cpu/panel_layout.h"

namespace ballast {
namespace {

// Words with the codes of two adjacent columns, times `factor` plus `addend`, are two bytes without overflow.
template <const QuantLayout& kLayout>
struct CodeFactors {
  Bytes factor[kLayout.subs_per_group()];
  Bytes addend[kLayout.subs_per_group()];
};

// `subs`: the scale bytes of a group for the rows of a vector.
template <const QuantLayout& kLayout>
BALLAST_INLINE void decode_factors(const uint8_t* subs, CodeFactors<kLayout>& out) {
  for (int sub = 0; sub < kLayout.subs_per_group(); ++sub) {
    const Bytes scale = byte_of_rows(subs + sub * kPanelRows);
    if constexpr (kLayout.negates_codes()) {
      // 128 - (code - 4) * scale with scales of -32 to 31: 4 to 252. 128 + (code - 4) * scale would reach
      // 256.
      out.factor[sub] = subtract_words(words_of(0), high_bytes_of_words(scale));
      out.addend[sub] = xor_bytes(shift_left<2>(and_bytes(scale, bytes_of(0x3f))), bytes_of(128));
    } else {
      out.factor[sub] = and_bytes(scale, words_of(15));
    }
  }
}

template <const QuantLayout& kLayout, int kQuad>
BALLAST_INLINE Bytes scale_codes(Bytes codes, const CodeFactors<kLayout>& factors) {
  constexpr int kSub = kQuad * kLayout.subs_per_group() / kGroupQuads;
  const Bytes products = multiply_words(codes, factors.factor[kSub]);
  if constexpr (kLayout.negates_codes()) return wide_codes(add_words(products, factors.addend[kSub]));
  return products;
}

// The largest scaled code.
constexpr int largest_scaled_code(const QuantLayout& layout) {
  return layout.negates_codes() ? 252 : 15 * ((1 << layout.bits) - 1);
}

// The bytes of the two sub-blocks of a group, each repeated in a word.
BALLAST_INLINE Bytes pair_of_scales(const uint8_t* subs) {
  return blend_words(byte_of_rows(subs), byte_of_rows(subs + kPanelRows));
}
template <const QuantLayout& kLayout>
BALLAST_INLINE Bytes scales_of_pair(Bytes pair) {
  return kLayout.scales == Scales::kNibbles ? and_bytes(pair, words_of(15)) : high_bytes_of_words(pair);
}
BALLAST_INLINE Bytes minima_of_pair(Bytes pair) { return shift_right<12>(pair); }
// The factors of the activation sums: minima, or the offset of the codes.
template <const QuantLayout& kLayout>
BALLAST_INLINE Bytes offsets_of_pair(Bytes pair) {
  if constexpr (kLayout.has_minimum) return minima_of_pair(pair);
  return shift_left<kLayout.offset_log2()>(scales_of_pair<kLayout>(pair));
}
// One of the two words of each row, and 0.
template <int kWord>
BALLAST_INLINE Ints word_of_pair(Bytes words) {
  return kWord == 0 ? and_bytes(words, broadcast_int(0xffff)) : shift_right_ints<16>(words);
}

// Signed codes are scaled only if they are multiplied as unsigned bytes. Otherwise it is slower.
template <const QuantLayout& kLayout>
constexpr bool multiplies_scaled_codes() {
  return !kLayout.negates_codes() || kWideIsBiased;
}

}  // namespace
}  // namespace ballast
