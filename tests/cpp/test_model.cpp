// The forward pass over small random models: the same logits in any cut into steps, and nothing but them
// written.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "cpu/dispatch.h"
#include "model/transformer.h"

using namespace ballast;

namespace {

constexpr int64_t kVocabulary = 19;
constexpr int64_t kBlockTokens = 4;
constexpr int64_t kNumBlocks = 6;
constexpr int64_t kNumTokens = 9;

const ModelShape kShape{32, 6, 1e-6f, {5, 2, 1, 1, true, false, true, 1.5f}};
const LatentShape kLatent{3, 20, 8, 6, 7, 0.3f};
const GroupedShape kGrouped{6, 2, 10, 9, 6, 0.3f};

const IndexerShape kIndexer{5, 8, 3, true};

enum class Kind { kOfLatent, kOfGroups, kSparse };

// A two-layer model, dense and routed, with its memory.
class SmallModel {
 public:
  SmallModel(const Kernels* kernels, int num_threads, Kind kind = Kind::kOfLatent)
      : kind_(kind), pool_(num_threads), engine_(7) {
    cos_ = floats(kPositions * kShape.rope_dim / 2);
    sin_ = floats(kPositions * kShape.rope_dim / 2);
    ModelWeights weights{matrix(kVocabulary, kShape.hidden),
                         {layer(true, 1), layer(false, kShape.routing.num_experts)},
                         floats(kShape.hidden),
                         matrix(kVocabulary, kShape.hidden)};
    KvCache cache{{}, kPositions};
    for (const LayerWeights& each : weights.layers) {
      cache.layers.emplace_back();
      for (const int64_t width : plane_widths(each.attention)) {
        planes_.emplace_back(static_cast<size_t>(kPositions * width), NAN);
        cache.layers.back().push_back(planes_.back().data());
      }
    }
    if (spoil) spoil(weights, *this);
    model_.reset(new Transformer(pool_, kernels, kShape, std::move(weights),
                                 {cos_.data(), sin_.data(), kPositions}, cache));
  }

  // Logits after each of the tokens begin…end of one sequence.
  std::vector<float> run(int64_t begin, int64_t end) {
    std::vector<int32_t> ids, positions, slots;
    std::vector<int64_t> sampled;
    for (int64_t at = begin; at < end; ++at) {
      ids.push_back(static_cast<int32_t>(at * 5 % kVocabulary));
      positions.push_back(static_cast<int32_t>(at));
      const int64_t block = blocks_[static_cast<size_t>(at / kBlockTokens)];
      slots.push_back(static_cast<int32_t>(block * kBlockTokens + at % kBlockTokens));
      sampled.push_back(at - begin);
    }
    const std::vector<int32_t> query_indptr{0, static_cast<int32_t>(end - begin)};
    const std::vector<int32_t> kv_indptr{0, static_cast<int32_t>(blocks_.size())};
    const Step step{ids.data(),
                    slots.data(),
                    {1, end - begin, kPositions, kv_indptr[1], kBlockTokens, query_indptr.data(),
                     positions.data(), kv_indptr.data(), blocks_.data()},
                    sampled.data(),
                    end - begin};
    std::vector<float> logits(static_cast<size_t>((end - begin) * kVocabulary), NAN);
    model_->forward(step, logits.data(), [this] { ++layers_done; });
    return logits;
  }

  Matrix matrix(int64_t rows, int64_t cols) {
    memory_.push_back(floats(rows * cols));
    return Matrix(memory_.back().data(), rows * cols * int64_t{sizeof(float)}, 0, rows, cols);
  }

  static inline void (*spoil)(ModelWeights&, SmallModel&) = nullptr;
  int layers_done = 0;

 private:
  static constexpr int64_t kPositions = kNumBlocks * kBlockTokens;

  std::vector<float> floats(int64_t num) {
    std::vector<float> values(static_cast<size_t>(num));
    for (float& value : values) value = static_cast<float>(engine_() % 2001) / 1000.0f - 1.0f;
    return values;
  }

  LayerWeights layer(bool dense, int64_t num_experts) {
    LayerWeights weights{floats(kShape.hidden), kind_ == Kind::kOfGroups ? grouped(dense) : latent(dense),
                         floats(kShape.hidden), experts(1), std::nullopt};
    if (!dense)
      weights.routed = RoutedWeights{matrix(num_experts, kShape.hidden), floats(num_experts), experts(5)};
    return weights;
  }

  Attention latent(bool dense) {
    const int64_t heads = kLatent.num_heads, rank = kLatent.kv_lora_rank;
    const int64_t joint = kLatent.nope_dim + kLatent.v_dim;
    const Matrix kv_b = matrix(heads * joint, rank);
    const Matrix k_b = matrix(heads * rank, kLatent.nope_dim);
    LatentAttention attention{kLatent,
                              std::nullopt,
                              matrix(heads * kLatent.query_dim(), dense ? kShape.hidden : 11),
                              matrix(kLatent.latent_dim(), kShape.hidden),
                              floats(rank),
                              dense ? HeadMatrix{kv_b, joint, 0, true} : HeadMatrix{k_b, rank, 0, false},
                              HeadMatrix{kv_b, joint, kLatent.nope_dim, false},
                              matrix(kShape.hidden, heads * kLatent.v_dim),
                              std::nullopt};
    if (!dense) attention.query_down = QueryDown{matrix(11, kShape.hidden), floats(11)};
    if (kind_ == Kind::kSparse) make_sparse(attention, dense);
    return attention;
  }

  // The first layer chooses, and the second takes its choice.
  void make_sparse(LatentAttention& attention, bool has_indexer) {
    if (!attention.query_down) {
      attention.query_down = QueryDown{matrix(11, kShape.hidden), floats(11)};
      attention.query_up = matrix(kLatent.num_heads * kLatent.query_dim(), 11);
    }
    attention.sparse = SparseChoice{kIndexer, std::nullopt};
    if (!has_indexer) return;
    attention.sparse->indexer = Indexer{
        matrix(kIndexer.num_heads * kIndexer.key_width, 11), matrix(kIndexer.key_width, kShape.hidden),
        floats(kIndexer.key_width), floats(kIndexer.key_width), matrix(kIndexer.num_heads, kShape.hidden)};
  }

  // With biases in one layer and norms in the other.
  Attention grouped(bool dense) {
    const int64_t heads = kGrouped.num_heads, kv_heads = kGrouped.num_kv_heads, width = kGrouped.head_dim;
    const auto optional = [&](bool has, int64_t size) { return has ? floats(size) : std::vector<float>(); };
    return GroupedAttention{kGrouped,
                            matrix(heads * width, kShape.hidden),
                            matrix(kv_heads * width, kShape.hidden),
                            matrix(kv_heads * kGrouped.v_dim, kShape.hidden),
                            optional(dense, heads * width),
                            optional(dense, kv_heads * width),
                            optional(dense, kv_heads * kGrouped.v_dim),
                            optional(!dense, width),
                            optional(!dense, width),
                            matrix(kShape.hidden, heads * kGrouped.v_dim)};
  }

  Experts experts(int64_t num) {
    const int64_t width = 13;
    return Experts(matrix(num * width, kShape.hidden), matrix(num * width, kShape.hidden),
                   matrix(num * kShape.hidden, width), num);
  }

  const Kind kind_;
  ThreadPool pool_;
  std::mt19937 engine_;
  std::vector<std::vector<float>> memory_;
  std::vector<float> cos_, sin_;
  std::vector<std::vector<float>> planes_;
  const std::vector<int32_t> blocks_{4, 1, 3};
  std::unique_ptr<Transformer> model_;
};

LatentAttention& latent_of(LayerWeights& layer) { return std::get<LatentAttention>(layer.attention); }
GroupedAttention& grouped_of(LayerWeights& layer) { return std::get<GroupedAttention>(layer.attention); }

std::string refusal(void (*spoil)(ModelWeights&, SmallModel&), Kind kind = Kind::kOfLatent) {
  SmallModel::spoil = spoil;
  std::string message = "none";
  try {
    SmallModel(nullptr, 1, kind);
  } catch (const std::invalid_argument& error) {
    message = error.what();
  }
  SmallModel::spoil = nullptr;
  return message;
}

bool begins_with(const std::string& text, const std::string& beginning) {
  return text.compare(0, beginning.size(), beginning) == 0;
}

}  // namespace

TEST(logits_do_not_depend_on_how_tokens_are_cut_into_steps_or_threads) {
  for (const Kind kind : {Kind::kOfLatent, Kind::kOfGroups, Kind::kSparse}) {
    for (const std::string& isa : usable_isas()) {
      const Kernels* kernels = find_isa(isa);
      const std::vector<float> whole = SmallModel(kernels, 1, kind).run(0, kNumTokens);
      for (const float logit : whole) EXPECT(std::isfinite(logit));
      for (int num_threads : {1, 2, 5}) {
        for (int64_t step : {int64_t{1}, int64_t{2}, int64_t{4}, kNumTokens}) {
          SmallModel model(kernels, num_threads, kind);
          for (int64_t begin = 0; begin < kNumTokens; begin += step) {
            const int64_t end = std::min(begin + step, kNumTokens);
            const std::vector<float> logits = model.run(begin, end);
            EXPECT(std::memcmp(logits.data(), whole.data() + begin * kVocabulary,
                               logits.size() * sizeof(float)) == 0);
          }
        }
      }
    }
  }
}

TEST(every_layer_is_reported) {
  SmallModel model(nullptr, 2);
  model.run(0, 3);
  EXPECT_EQ(model.layers_done, 2);
}

TEST(a_step_without_tokens_is_no_work) {
  SmallModel model(nullptr, 2);
  EXPECT_EQ(model.run(3, 3).size(), size_t{0});
  EXPECT_EQ(model.layers_done, 0);
}

TEST(a_weight_that_does_not_fit_is_refused_by_name) {
  EXPECT(begins_with(
      refusal([](ModelWeights& w, SmallModel& m) { latent_of(w.layers[1]).kv_a = m.matrix(9, 32); }),
      "layers[1].attention.kv_a is [9, 32]; expected [26, 32]"));
  EXPECT(begins_with(refusal([](ModelWeights& w, SmallModel&) { w.layers[0].ffn_norm.pop_back(); }),
                     "layers[0].ffn_norm has 31 entries; expected 32"));
  EXPECT(
      begins_with(refusal([](ModelWeights& w, SmallModel&) { latent_of(w.layers[0]).k_up.row_offset = 8; }),
                  "layers[0].attention.k_up is [45, 20] with head_stride 15 and row_offset 8"));
  EXPECT(begins_with(refusal([](ModelWeights& w, SmallModel&) { w.layers[1].routed->bias.pop_back(); }),
                     "layers[1].bias has 4 entries; expected 5"));
  EXPECT(begins_with(refusal([](ModelWeights& w, SmallModel& m) { w.output = m.matrix(19, 31); }),
                     "output is [19, 31]; expected [19, 32]"));
  EXPECT(begins_with(refusal([](ModelWeights& w, SmallModel&) { w.layers.pop_back(); }),
                     "the cache has 2 layers; expected 1"));
  EXPECT(begins_with(
      refusal([](ModelWeights& w, SmallModel& m) { grouped_of(w.layers[1]).key = m.matrix(9, 32); },
              Kind::kOfGroups),
      "layers[1].attention.key is [9, 32]; expected [20, 32]"));
  EXPECT(
      begins_with(refusal([](ModelWeights& w, SmallModel&) { grouped_of(w.layers[0]).value_bias.pop_back(); },
                          Kind::kOfGroups),
                  "layers[0].attention.value_bias has 17 entries; expected 18"));
  EXPECT(begins_with(
      refusal([](ModelWeights& w, SmallModel&) { grouped_of(w.layers[0]).shape.num_kv_heads = 4; },
              Kind::kOfGroups),
      "layers[0].attention has 6 heads for 4 of the cache"));
}

TEST(an_indexer_that_does_not_fit_is_refused_by_name) {
  const auto refused = [](void (*spoil)(ModelWeights&, SmallModel&)) {
    return refusal(spoil, Kind::kSparse);
  };
  EXPECT(begins_with(refused([](ModelWeights& w, SmallModel& m) {
                       latent_of(w.layers[0]).sparse->indexer->key = m.matrix(8, 31);
                     }),
                     "layers[0].attention.indexer.key is [8, 31]; expected [8, 32]"));
  EXPECT(begins_with(refused([](ModelWeights& w, SmallModel&) {
                       latent_of(w.layers[0]).sparse->indexer->key_shift.pop_back();
                     }),
                     "layers[0].attention.indexer.key_shift has 7 entries; expected 8"));
  EXPECT(begins_with(
      refused([](ModelWeights& w, SmallModel&) { latent_of(w.layers[0]).sparse->indexer.reset(); }),
      "layers[0].attention has no indexer; expected one in it or in a layer below"));
  EXPECT(begins_with(
      refused([](ModelWeights& w, SmallModel&) { latent_of(w.layers[1]).sparse->shape.top_k = 4; }),
      "layers[1].attention attends to 4 positions; expected 3"));
  EXPECT(begins_with(
      refused([](ModelWeights& w, SmallModel&) { latent_of(w.layers[0]).sparse->shape.key_width = 5; }),
      "layers[0].attention has index keys of 5; expected at least 6 entries"));
  EXPECT(begins_with(
      refused([](ModelWeights& w, SmallModel&) { latent_of(w.layers[1]).sparse->shape.num_heads = 0; }),
      "layers[1].attention chooses 3 positions by 0 heads; expected at least 1 of each"));
  EXPECT(begins_with(refused([](ModelWeights& w, SmallModel& m) {
                       latent_of(w.layers[0]).query_down.reset();
                       latent_of(w.layers[0]).query_up = m.matrix(42, 32);
                     }),
                     "layers[0].attention has an indexer, but no query_down"));
}
