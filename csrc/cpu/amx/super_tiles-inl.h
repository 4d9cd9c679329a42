// Multiplies blocks of 256 columns in tiles. The scale of a sub-block, 8 high + low, is multiplied into its
// codes: code * high and code * low are bytes, and the block is scaled only at its end.
#pragma once

#include "cpu/amx/super_blocks-inl.h"
#include "cpu/amx/tile_tokens.h"
#include "cpu/shared/integers-inl.h"

namespace ballast {
namespace {

constexpr int kStepGroups = 2;  // 64 columns: one product of full tiles
constexpr int kBlockSteps = kSuperGroups / kStepGroups;
constexpr int kScaleDigits = 2;  // high, low
constexpr int kScaleBits = 3;    // in the low digit
constexpr int kPairTiles = 2;    // tokens of two tiles, or the two bytes of one tile
constexpr int kSumQuads = kSuperGroups / 4;
constexpr int kSumPairs = kSuperGroups / 2;
// Tokens that one decoded block is multiplied with.
constexpr int64_t kMostSuperTokens = 256;
constexpr int kSumBits = 13;  // in the lower digit of a two-byte sum; the upper is a byte

// The scaled codes of a block of a panel.
struct ScaledCodes {
  alignas(64) uint8_t bytes[kBlockSteps][kScaleDigits][kStepGroups * kGroupQuads][kQuadBytes];
};

// Finishes the sums of a block. Minima of four sub-blocks are adjacent bytes; wide minima are two 16-bit
// values.
struct BlockEnds {
  BlockScales scales;
  Ints minima[kSumQuads];
  Ints wide_minima[kSumPairs];
};

// The position of a sub-block in the wide minima.
constexpr int pair_of(int group) { return group / 4 * 2 + group % 2; }
constexpr int half_of(int group) { return group / 2 % 2; }

BALLAST_INLINE Ints side_by_side(Ints low, Ints high) {
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

template <const QuantLayout& kLayout, int kQuad = 0>
BALLAST_INLINE void scale_quads(const uint8_t* group, Ints high, Ints low,
                                uint8_t (*digits)[kStepGroups * kGroupQuads][kQuadBytes], int first) {
  if constexpr (kQuad < kGroupQuads) {
    // Multiplies two bytes at a time: no product carries into its neighbor.
    const Bytes codes = decode_quad<kLayout, kQuad>(group);
    _mm512_store_si512(digits[0][first + kQuad], _mm512_mullo_epi16(codes, high));
    _mm512_store_si512(digits[1][first + kQuad], _mm512_mullo_epi16(codes, low));
    scale_quads<kLayout, kQuad + 1>(group, high, low, digits, first);
  }
}

template <const QuantLayout& kLayout>
void decode_block(const uint8_t* record, const uint8_t* groups, ScaledCodes& codes, BlockEnds& ends) {
  ends.scales = block_scales(record);
  const uint8_t* minima = minima_of_groups(record);
  for (int quad = 0; quad < kSumQuads; ++quad, minima += 4 * kPanelRows) {
    Ints wide[2];
    for (int i = 0; i < 2; ++i)
      wide[i] = side_by_side(load_int8(minima + i * kPanelRows), load_int8(minima + (i + 2) * kPanelRows));
    ends.minima[quad] = _mm512_or_si512(wide[0], _mm512_slli_epi32(wide[1], 8));
    for (int i = 0; i < 2; ++i) ends.wide_minima[2 * quad + i] = wide[i];
  }
  for (int group = 0; group < kSuperGroups; ++group) {
    const Ints scale = load_int8(scales_of_groups(record) + group * kPanelRows);
    const Ints high = _mm512_srli_epi32(scale, kScaleBits);
    const Ints low = _mm512_and_si512(scale, broadcast_int((1 << kScaleBits) - 1));
    scale_quads<kLayout>(groups + group * kLayout.group_bytes(), side_by_side(high, high),
                         side_by_side(low, low), codes.bytes[group / kStepGroups],
                         group % kStepGroups * kGroupQuads);
  }
}

// One block of the tokens that fill a pair of tiles.
struct PairQuants {
  alignas(64) int8_t bytes[kBlockSteps][kPairTiles][kTileTokens][kStepGroups * kGroupCols];
};

// Finishes the sums of these tokens: scales, and sums of the activations of each sub-block by digit.
template <int kBytes>
struct PairEnds {
  static constexpr int kTokens = kPairTiles * kTileTokens / kBytes;

  static constexpr int tile_of(int64_t token, int plane) {
    return static_cast<int>(kBytes == 1 ? token / kTileTokens : plane);
  }

  alignas(64) int16_t sums[kTokens][kSumPairs][2];  // lower digits
  int8_t upper_sums[kTokens][kSuperGroups];         // two bytes only
  float scale[kTokens];
};

template <int kBytes>
BALLAST_INLINE void gather_token(const ActivationBlock<kBytes>* blocks, int64_t token, PairQuants& quants,
                                 PairEnds<kBytes>& ends) {
  for (int group = 0; group < kSuperGroups; ++group) {
    for (int plane = 0; plane < kBytes; ++plane) {
      int8_t* row =
          quants.bytes[group / kStepGroups][PairEnds<kBytes>::tile_of(token, plane)][token % kTileTokens];
      __builtin_memcpy(row + group % kStepGroups * kGroupCols, blocks[group].quants + plane * kGroupCols,
                       kGroupCols);
    }
    const int32_t sum = -blocks[group].negative_sum;
    if constexpr (kBytes == 2) ends.upper_sums[token][group] = static_cast<int8_t>(sum >> kSumBits);
    ends.sums[token][pair_of(group)][half_of(group)] =
        static_cast<int16_t>(kBytes == 1 ? sum : sum & ((1 << kSumBits) - 1));
  }
  ends.scale[token] = blocks[0].scale;
}

// Tokens beyond `num_tokens` are zero.
template <int kBytes>
void gather_pair(const void* const* tokens, int64_t num_tokens, int64_t first_group, PairQuants& quants,
                 PairEnds<kBytes>& ends) {
  static constexpr ActivationBlock<kBytes> kNothing[kSuperGroups]{};
  for (int64_t token = 0; token < PairEnds<kBytes>::kTokens; ++token) {
    const ActivationBlock<kBytes>* blocks = kNothing;
    if (token < num_tokens) blocks = static_cast<const ActivationBlock<kBytes>*>(tokens[token]) + first_group;
    gather_token<kBytes>(blocks, token, quants, ends);
  }
}

struct TileSums {
  alignas(64) int32_t sums[kPairTiles][kScaleDigits][kTileTokens][kPanelRows];
};

BALLAST_INLINE Ints broadcast_bytes(const void* four_bytes) {
  int32_t bytes;
  __builtin_memcpy(&bytes, four_bytes, sizeof(bytes));
  return broadcast_int(bytes);
}

// The sums of a token's activations times the minima of the rows.
template <int kBytes>
BALLAST_INLINE Ints minimum_of(const PairEnds<kBytes>& tokens, int64_t token, const BlockEnds& rows) {
  Ints lower = zero_ints();
#pragma GCC unroll 4
  for (int pair = 0; pair < kSumPairs; ++pair)
    lower = _mm512_dpwssd_epi32(lower, rows.wide_minima[pair], broadcast_bytes(tokens.sums[token][pair]));
  if constexpr (kBytes == 1) return lower;
  Ints upper = zero_ints();
#pragma GCC unroll 2
  for (int quad = 0; quad < kSumQuads; ++quad)
    upper =
        _mm512_dpbusd_epi32(upper, rows.minima[quad], broadcast_bytes(tokens.upper_sums[token] + 4 * quad));
  return add_ints(shift_left_ints<kSumBits>(upper), lower);
}

// Sums that were stored from tiles and still have to be added to `out` [token][16].
template <int kBytes>
struct Pending {
  const TileSums* sums;
  const BlockEnds* rows;
  const PairEnds<kBytes>* tokens;
  float* out;
  int64_t num_tokens;
  bool is_first;  // `out` is still empty

  // Adds one of kBlockSteps slices of the tokens.
  void add_slice(int64_t slice) const {
    constexpr int64_t kSlice = PairEnds<kBytes>::kTokens / kBlockSteps;
    for (int64_t token = slice * kSlice; token < smaller(num_tokens, (slice + 1) * kSlice); ++token) {
      Ints whole[kBytes];
#pragma GCC unroll 2
      for (int plane = 0; plane < kBytes; ++plane) {
        const auto& digits = sums->sums[PairEnds<kBytes>::tile_of(token, plane)];
        const int64_t row = token % kTileTokens;
        whole[plane] = add_ints(shift_left_ints<kScaleBits>(_mm512_load_si512(digits[0][row])),
                                _mm512_load_si512(digits[1][row]));
      }
      float* to = out + token * kPanelRows;
      const Floats before = is_first ? zero_floats() : load_floats(to);
      store_floats(to, add_block<kBytes>(whole, minimum_of<kBytes>(*tokens, token, *rows), rows->scales,
                                         tokens->scale[token], before));
    }
  }
};

// Tiles: sums in 0…3, tokens in 4 and 5, codes in 6 and 7.
TileConfig whole_tiles() {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = kTileTokens;
    config.row_bytes[tile] = kQuadBytes;
  }
  return config;
}

template <int kBytes>
BALLAST_INLINE void multiply_pair(const ScaledCodes& codes, const PairQuants& quants,
                                  const Pending<kBytes>& pending, TileSums& sums) {
  zero_tile<0>();
  zero_tile<1>();
  zero_tile<2>();
  zero_tile<3>();
  for (int step = 0; step < kBlockSteps; ++step) {
    load_tile<6>(codes.bytes[step][0], kQuadBytes);
    load_tile<4>(quants.bytes[step][0], kQuadBytes);
    add_unsigned_products<0, 4, 6>();
    load_tile<7>(codes.bytes[step][1], kQuadBytes);
    add_unsigned_products<1, 4, 7>();
    load_tile<5>(quants.bytes[step][1], kQuadBytes);
    add_unsigned_products<2, 5, 6>();
    add_unsigned_products<3, 5, 7>();
    pending.add_slice(step);
  }
  store_tile<0>(sums.sums[0][0], kQuadBytes);
  store_tile<1>(sums.sums[0][1], kQuadBytes);
  store_tile<2>(sums.sums[1][0], kQuadBytes);
  store_tile<3>(sums.sums[1][1], kQuadBytes);
}

// Products whose sums are pending, so that vectors never wait for tiles, and the arrays that these sums read.
constexpr int kPairsInFlight = 2;
constexpr int kKept = kPairsInFlight + 1;

// The address of a block of a panel.
template <const QuantLayout& kLayout>
struct BlockAddress {
  static constexpr int64_t kRecordLines = divide_up(kLayout.scale_stride(), 64);
  static constexpr int64_t kCodeLines = kSuperGroups * kLayout.group_bytes() / 64;

  BlockAddress(const uint8_t* panel, int64_t cols, int64_t block)
      : record(panel + block * kLayout.scale_stride()),
        groups(panel + kLayout.scale_bytes(cols) + block * kCodeLines * 64) {}

  const uint8_t* record;
  const uint8_t* groups;
};

// Prefetches lines [begin, end) from `from` into the second-level cache.
BALLAST_INLINE void prefetch_lines(const void* from, int64_t begin, int64_t end) {
  for (int64_t line = begin; line < end; ++line)
    _mm_prefetch(static_cast<const char*>(from) + line * 64, _MM_HINT_T1);
}

// Up to kMostSuperTokens tokens in the layout of tiles, gathered block by block.
template <int kBytes>
class GatheredTokens {
 public:
  GatheredTokens(const void* const* tokens, int64_t num_tokens) : tokens_(tokens), num_tokens_(num_tokens) {}

  void begin_block(int64_t block) {
    ends_of_block_ = ends_[block % kKept];
    for (int64_t first = 0, pair = 0; first < num_tokens_; first += PairEnds<kBytes>::kTokens, ++pair) {
      gather_pair<kBytes>(tokens_ + first, num_tokens_ - first, block * kSuperGroups, quants_[pair],
                          ends_of_block_[pair]);
    }
  }
  const PairQuants& quants(int64_t pair) const { return quants_[pair]; }
  const PairEnds<kBytes>& ends(int64_t pair) const { return ends_of_block_[pair]; }

 private:
  static constexpr int64_t kMostPairs = kMostSuperTokens / PairEnds<kBytes>::kTokens;

  const void* const* const tokens_;
  const int64_t num_tokens_;
  PairQuants quants_[kMostPairs];
  PairEnds<kBytes> ends_[kKept][kMostPairs];
  PairEnds<kBytes>* ends_of_block_ = nullptr;
};

// The same layout, gathered in advance.
template <int kBytes>
struct TokenPair {
  PairQuants quants;
  PairEnds<kBytes> ends;
};

template <int kBytes>
void arrange_pairs(const void* const* tokens, int64_t num_tokens, int64_t first_group, void* bundles) {
  TokenPair<kBytes>* pair = static_cast<TokenPair<kBytes>*>(bundles);
  for (int64_t first = 0; first < num_tokens; first += PairEnds<kBytes>::kTokens, ++pair)
    gather_pair<kBytes>(tokens + first, num_tokens - first, first_group, pair->quants, pair->ends);
}

template <int kBytes>
class ArrangedPairs {
 public:
  explicit ArrangedPairs(const ArrangedTokens& arranged) : arranged_(arranged) {}

  void begin_block(int64_t block) {
    pairs_ = reinterpret_cast<const TokenPair<kBytes>*>(arranged_.first + block * arranged_.column_stride);
  }
  const PairQuants& quants(int64_t pair) const { return pairs_[pair].quants; }
  const PairEnds<kBytes>& ends(int64_t pair) const { return pairs_[pair].ends; }

 private:
  const ArrangedTokens& arranged_;
  const TokenPair<kBytes>* pairs_ = nullptr;
};

// Requires at least one token.
template <const QuantLayout& kLayout, int kBytes, class Tokens>
void multiply_in_whole_tiles(const PanelRun& run, Tokens& tokens, int64_t num_tokens,
                             const PanelProducts& out) {
  using Address = BlockAddress<kLayout>;
  constexpr int64_t kPairTokens = PairEnds<kBytes>::kTokens;
  const int64_t num_blocks = run.cols / (kSuperGroups * kGroupCols);
  const int64_t num_pairs = divide_up(num_tokens, kPairTokens);
  const int64_t pair_lines = divide_up(Address::kCodeLines, num_pairs);
  ScaledCodes codes;
  BlockEnds of_rows[kKept];
  TileSums sums[kKept];
  Pending<kBytes> pending[kKept] = {};
  int64_t num_decoded = 0;
  int64_t product = 0;
  configure_tiles(whole_tiles());
  for (int64_t block = 0; block < num_blocks; ++block) {
    tokens.begin_block(block);
    const bool is_last = block + 1 == num_blocks;
    const uint8_t* const after = is_last && run.next != nullptr ? run.next : panel_of(run, 0);
    for (int64_t panel = 0; panel < run.count; ++panel, ++num_decoded) {
      const Address address(panel_of(run, panel), run.cols, block);
      const Address next = panel + 1 < run.count ? Address(panel_of(run, panel + 1), run.cols, block)
                                                 : Address(after, run.cols, is_last ? 0 : block + 1);
      BlockEnds& decoded = of_rows[num_decoded % kKept];
      decode_block<kLayout>(address.record, address.groups, codes, decoded);
      prefetch_lines(next.record, 0, Address::kRecordLines);
      for (int64_t pair = 0; pair < num_pairs; ++pair, ++product) {
        const int64_t first = pair * kPairTokens;
        prefetch_lines(next.groups, pair * pair_lines, smaller(Address::kCodeLines, (pair + 1) * pair_lines));
        TileSums& leaving = sums[product % kKept];
        multiply_pair<kBytes>(codes, tokens.quants(pair), pending[(product + 1) % kKept], leaving);
        pending[product % kKept] = {&leaving,
                                    &decoded,
                                    &tokens.ends(pair),
                                    products_of(out, panel) + first * kPanelRows,
                                    smaller(kPairTokens, num_tokens - first),
                                    block == 0};
      }
    }
  }
  for (int64_t last = product - kPairsInFlight; last < product; ++last) {
    for (int64_t slice = 0; slice < kBlockSteps && last >= 0; ++slice) pending[last % kKept].add_slice(slice);
  }
  release_tiles();
}

}  // namespace
}  // namespace ballast
