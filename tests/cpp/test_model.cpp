// The forward pass of small random models: logits do not depend on the split into steps, and nothing else is
// written.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/ids.h"
#include "check.h"
#include "cpu/dispatch.h"
#include "model/transformer.h"

using namespace ballast;

namespace {

constexpr int64_t kVocabulary = 19;
constexpr int64_t kBlockTokens = 4;
constexpr int64_t kNumBlocks = 6;
constexpr int64_t kNumTokens = 9;

constexpr int64_t kRopeDim = 6;
const ModelShape kShape{32, 1e-6f, {5, 2, 1, 1, Gating::kSigmoid, false, true, 1.5f}};
const LatentShape kLatent{3, 20, 8, 6, 7, 0.3f, std::nullopt};
const GroupedShape kGrouped{6, 2, 10, 9, 6, 0.3f, false};

const IndexerShape kIndexer{5, 8, 3, true};
const IndexerShape kPooledIndexer{5, 8, 4, true, 2};
constexpr StreamShape kStream{3, 4, 1e-6f};

const IndexerShape kBlockIndexer{5, 8, 4, true, 2, true};
constexpr StreamShape kGatedStream{3, 0, 0.0f, 5};
// Groups of two and three tokens, with two heads each.
const NgramShape kNgram{{3, 1000003, 77777777777}, {0, 7, 12, 23}, {7, 5, 11, 6}, 5, 3};
constexpr int64_t kTableRows = 30, kTableWidth = 4;

// Entries of 2 tokens in the first layer, which are chosen, and of 4 in the second one.
const CompressedShape kIndexedEntries{4, 12, kRopeDim, 3, 2, 2, IndexShape{5, 8, 2}};
const CompressedShape kEntries{4, 12, kRopeDim, 3, 4, 2, std::nullopt};

// Pooled and compressed ones have hyper-connections as well, and compressed ones tables of experts; gated
// ones have gated rows, chosen blocks and an n-gram embedding.
enum class Kind { kOfLatent, kOfGroups, kSparse, kPooled, kGated, kCompressed };

bool mixes_rows(Kind kind) { return kind == Kind::kPooled || kind == Kind::kCompressed; }
bool has_states(Kind kind) { return mixes_rows(kind) || kind == Kind::kGated; }

ModelShape shape_of(Kind kind) {
  ModelShape shape = kShape;
  if (mixes_rows(kind)) shape.stream = kStream;
  if (kind == Kind::kGated) shape.stream = kGatedStream;
  if (kind == Kind::kCompressed) shape.routing.gating = Gating::kSqrtSoftplus;
  return shape;
}

// A two-layer model, one layer dense and one routed, with its memory.
class SmallModel {
 public:
  SmallModel(const Kernels* kernels, int num_threads, Kind kind = Kind::kOfLatent, bool is_half = false)
      : kind_(kind), pool_(num_threads), engine_(7) {
    cos_ = floats(kPositions * kRopeDim / 2);
    sin_ = floats(kPositions * kRopeDim / 2);
    ModelInput input{matrix(kVocabulary, kShape.hidden),
                     {layer(true), layer(false)},
                     output_tensors(),
                     matrix(kVocabulary, kShape.hidden)};
    KvCache cache{{}, kPositions, kPositions, 1};
    const ModelShape shape = shape_of(kind);
    for (const LayerWeights& each : ModelWeights(input, shape).layers) {
      cache.layers.emplace_back();
      for (const int64_t num_floats : each.state_floats()) {
        cache.num_state_slots = 2;  // the null slot is not used
        planes_.emplace_back(static_cast<size_t>(2 * num_floats), NAN);
        cache.layers.back().states.push_back(planes_.back().data());
      }
      for (const int64_t width : each.attention->plane_widths()) {
        const int64_t num_floats = is_half ? (kPositions * width + 1) / 2 : kPositions * width;
        planes_.emplace_back(static_cast<size_t>(num_floats), NAN);
        cache.layers.back().planes.push_back({reinterpret_cast<uint8_t*>(planes_.back().data()), is_half});
      }
    }
    if (break_input) break_input(input, *this);
    model_.reset(new Transformer(pool_, kernels, shape, ModelWeights(input, shape),
                                 {{cos_.data(), sin_.data(), kPositions, kRopeDim}}, cache));
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
    const PagedBatch batch{1,
                           end - begin,
                           kPositions,
                           kv_indptr[1],
                           kBlockTokens,
                           query_indptr.data(),
                           positions.data(),
                           kv_indptr.data(),
                           blocks_.data()};
    const int32_t state_in = begin == 0 ? kNullState : 1, state_out = 1;
    const int32_t save_indptr[] = {0, 0};
    StateRows states{1, query_indptr.data()};
    if (has_states(kind_)) {
      states = {1, query_indptr.data(), &state_in, &state_out, save_indptr, nullptr, nullptr};
    }
    std::vector<int32_t> earlier;
    for (int64_t at = begin - kEarlierTokens; at < begin; ++at) {
      earlier.push_back(at < 0 ? kNoToken : static_cast<int32_t>(at * 5 % kVocabulary));
    }
    const Step step{ids.data(), slots.data(),   batch,       slots.data(),  batch,
                    states,     sampled.data(), end - begin, earlier.data()};
    std::vector<float> logits(static_cast<size_t>((end - begin) * kVocabulary), NAN);
    model_->forward(step, logits.data(), [this] { ++layers_done; });
    return logits;
  }

  Matrix matrix(int64_t rows, int64_t cols) {
    memory_.push_back(floats(rows * cols));
    return Matrix(memory_.back().data(), rows * cols * int64_t{sizeof(float)}, 0, rows, cols);
  }

  static inline void (*break_input)(ModelInput&, SmallModel&) = nullptr;
  int layers_done = 0;

 private:
  static constexpr int64_t kPositions = kNumBlocks * kBlockTokens;

  std::vector<float> floats(int64_t num) {
    std::vector<float> values(static_cast<size_t>(num));
    for (float& value : values) value = static_cast<float>(engine_() % 2001) / 1000.0f - 1.0f;
    return values;
  }

  LayerInput layer(bool dense) {
    TensorsByRole tensors{{"mlp", experts(1)}};
    if (kind_ != Kind::kGated) {
      tensors.emplace("attention_norm", floats(kShape.hidden));
      tensors.emplace("ffn_norm", floats(kShape.hidden));
    }
    GroupedShape grouped_shape = kGrouped;
    if (dense) {
      grouped_shape.window = 3;
      grouped_shape.num_kv_heads = 3;
      grouped_shape.value_scale = 0.7f;
      grouped_shape.softplus_gates = true;
      grouped_shape.gates_entries = true;
    }
    MixerShape mixer = grouped_shape;
    if (kind_ == Kind::kOfGroups) {
      tensors.merge(grouped(dense, grouped_shape.num_kv_heads));
      if (!dense) tensors.emplace("router_logit_bias", floats(kShape.routing.num_experts));
    } else if (kind_ == Kind::kGated) {
      GroupedShape shape = kGrouped;
      shape.index = kBlockIndexer;
      mixer = shape;
      tensors.merge(gated(dense));
    } else if (kind_ == Kind::kCompressed) {
      mixer = dense ? kIndexedEntries : kEntries;
      tensors.merge(compressed(dense ? kIndexedEntries : kEntries));
    } else {
      LatentShape latent_shape = kLatent;
      if (kind_ == Kind::kSparse) latent_shape.index = kIndexer;
      if (kind_ == Kind::kPooled) latent_shape.index = kPooledIndexer;
      mixer = latent_shape;
      tensors.merge(latent(dense));
    }
    if (mixes_rows(kind_)) tensors.merge(connections());
    if (!dense) {
      const int64_t num_experts = kShape.routing.num_experts;
      tensors.emplace("router", matrix(num_experts, kShape.hidden));
      if (kind_ == Kind::kCompressed) {
        tensors.emplace("expert_table", table());
      } else {
        tensors.emplace("router_bias", floats(num_experts));
      }
      tensors.emplace("experts", experts(5));
    }
    LayerInput input{mixer, tensors};
    if (kind_ == Kind::kGated && dense) input.ngram = kNgram;
    return input;
  }

  // With sparse attention, the first layer chooses positions, and the second one reuses its choice.
  TensorsByRole latent(bool dense) {
    const int64_t heads = kLatent.num_heads, rank = kLatent.kv_lora_rank;
    const int64_t joint = kLatent.nope_dim + kLatent.v_dim;
    const bool is_sparse = kind_ == Kind::kSparse || kind_ == Kind::kPooled;
    const bool has_rank = !dense || is_sparse;
    const Matrix kv_b = matrix(heads * joint, rank);
    const Matrix k_b = matrix(heads * rank, kLatent.nope_dim);
    TensorsByRole tensors{
        {"query_up", matrix(heads * kLatent.query_dim(), has_rank ? 11 : kShape.hidden)},
        {"kv_a", matrix(kLatent.latent_dim(), kShape.hidden)},
        {"kv_a_norm", floats(rank)},
        {"k_up", dense ? HeadMatrix{kv_b, joint, 0, true} : HeadMatrix{k_b, rank, 0, false}},
        {"v_up", HeadMatrix{kv_b, joint, kLatent.nope_dim, false}},
        {"output", matrix(kShape.hidden, heads * kLatent.v_dim)}};
    if (has_rank) {
      tensors.emplace("query_down", matrix(11, kShape.hidden));
      tensors.emplace("query_norm", floats(11));
    }
    if (is_sparse && dense) {
      tensors.emplace("index_query_up", matrix(kIndexer.num_heads * kIndexer.key_width, 11));
      tensors.emplace("index_key", matrix(kIndexer.key_width, kShape.hidden));
      tensors.emplace("index_key_norm", floats(kIndexer.key_width));
      tensors.emplace("index_key_shift", floats(kIndexer.key_width));
      tensors.emplace("index_head_weights", matrix(kIndexer.num_heads, kShape.hidden));
    }
    if (kind_ == Kind::kPooled && dense) {
      tensors.emplace("index_pool_gate", matrix(kPooledIndexer.key_width, kShape.hidden));
      tensors.emplace("index_pool_offset", floats(kPooledIndexer.pool * kPooledIndexer.key_width));
    }
    return tensors;
  }

  TensorsByRole compressed(const CompressedShape& shape) {
    const int64_t rank = 11, outputs = 14, width = shape.head_dim, hidden = kShape.hidden;
    TensorsByRole tensors{
        {"query_down", matrix(rank, hidden)},
        {"query_norm", floats(rank)},
        {"query_up", matrix(shape.num_heads * width, rank)},
        {"key", matrix(width, hidden)},
        {"key_norm", floats(width)},
        {"sinks", floats(shape.num_heads)},
        {"output_up", matrix(hidden, outputs)},
        {"output_down", HeadMatrix{matrix(outputs, shape.num_heads / shape.output_groups * width),
                                   outputs / shape.output_groups, 0, false}}};
    tensors.merge(compressor("entry", shape.ratio, width, shape.index.has_value()));
    if (shape.index) {
      tensors.merge(compressor("index_entry", shape.ratio, shape.index->key_width, true));
      tensors.emplace("index_query_up", matrix(shape.index->num_heads * shape.index->key_width, rank));
      tensors.emplace("index_head_weights", matrix(shape.index->num_heads, hidden));
    }
    return tensors;
  }

  TensorsByRole compressor(const std::string& role, int64_t ratio, int64_t width, bool overlaps) {
    const int64_t columns = overlaps ? 2 * width : width;
    return {{role + "_value", matrix(columns, kShape.hidden)},
            {role + "_gate", matrix(columns, kShape.hidden)},
            {role + "_offset", floats(ratio * columns)},
            {role + "_norm", floats(width)}};
  }

  // Different experts of each token.
  std::vector<float> table() {
    std::vector<float> experts;
    for (int64_t id = 0; id < kVocabulary; ++id) {
      for (const int64_t expert : {id, id * 2 + 1}) {
        experts.push_back(static_cast<float>(expert % kShape.routing.num_experts));
      }
    }
    return experts;
  }

  TensorsByRole connections() {
    TensorsByRole tensors;
    for (const std::string block : {"attention", "ffn"}) {
      const int64_t num_weights = kStream.num_weights();
      tensors.emplace(block + "_stream_products", floats(num_weights * kStream.num_rows * kShape.hidden));
      tensors.emplace(block + "_stream_base", floats(num_weights));
      tensors.emplace(block + "_stream_scales", floats(3));
    }
    return tensors;
  }

  TensorsByRole output_tensors() {
    if (kind_ == Kind::kGated) return gates("output", false);
    TensorsByRole tensors{{"output_norm", floats(kShape.hidden)}};
    if (kind_ == Kind::kCompressed) {
      const int64_t num_rows = kStream.num_rows;
      tensors.emplace("stream_end_products", floats(num_rows * num_rows * kShape.hidden));
      tensors.emplace("stream_end_base", floats(num_rows));
      tensors.emplace("stream_end_scales", floats(1));
    }
    return tensors;
  }

  TensorsByRole gates(const std::string& block, bool injects) {
    const int64_t rows = kGatedStream.num_rows, rank = kGatedStream.rank, width = rows * kShape.hidden;
    TensorsByRole tensors{{block + "_stream_norm", floats(width)},
                          {block + "_stream_down", matrix(rank, width)},
                          {block + "_stream_up", matrix(width, rank)}};
    if (injects) tensors.emplace(block + "_stream_inject", matrix(rows, width));
    return tensors;
  }

  TensorsByRole gated(bool has_ngram) {
    const int64_t heads = kGrouped.num_heads, width = kGrouped.head_dim, kv_heads = kGrouped.num_kv_heads;
    const int64_t index_width = kBlockIndexer.key_width, rows = kGatedStream.num_rows * kShape.hidden;
    TensorsByRole tensors{{"query", matrix(heads * width, kShape.hidden)},
                          {"key", matrix(kv_heads * width, kShape.hidden)},
                          {"value", matrix(kv_heads * kGrouped.v_dim, kShape.hidden)},
                          {"output", matrix(kShape.hidden, heads * kGrouped.v_dim)},
                          {"index_query", matrix(kBlockIndexer.num_heads * index_width, kShape.hidden)},
                          {"index_key", matrix(index_width, kShape.hidden)},
                          {"index_query_norm", floats(index_width)},
                          {"index_key_norm", floats(index_width)}};
    tensors.merge(gates("attention", true));
    tensors.merge(gates("ffn", true));
    if (!has_ngram) return tensors;
    const int64_t embedded = kNgram.num_heads() * kTableWidth;
    tensors.merge(TensorsByRole{{"ngram_table", matrix(kTableRows, kTableWidth)},
                                {"ngram_key", matrix(rows, embedded)},
                                {"ngram_value", matrix(kShape.hidden, embedded)},
                                {"ngram_key_norm", floats(rows)},
                                {"ngram_query_norm", floats(rows)},
                                {"ngram_conv_norm", floats(rows)},
                                {"ngram_conv", floats(rows * kNgram.conv_taps)}});
    return tensors;
  }

  // One layer has a window, more heads in the cache, scaled values, sinks, biases and gates per entry; the
  // other one has norms and gates per head.
  TensorsByRole grouped(bool dense, int64_t kv_heads) {
    const int64_t heads = kGrouped.num_heads, width = kGrouped.head_dim;
    TensorsByRole tensors{{"query", matrix(heads * width, kShape.hidden)},
                          {"key", matrix(kv_heads * width, kShape.hidden)},
                          {"value", matrix(kv_heads * kGrouped.v_dim, kShape.hidden)},
                          {"output", matrix(kShape.hidden, heads * kGrouped.v_dim)}};
    if (dense) {
      tensors.emplace("query_bias", floats(heads * width));
      tensors.emplace("key_bias", floats(kv_heads * width));
      tensors.emplace("value_bias", floats(kv_heads * kGrouped.v_dim));
      tensors.emplace("output_bias", floats(kShape.hidden));
      tensors.emplace("sinks", floats(heads));
      tensors.emplace("head_gate", matrix(heads * kGrouped.v_dim, kShape.hidden));
    } else {
      tensors.emplace("head_gate", matrix(heads, kShape.hidden));
      tensors.emplace("query_norm", floats(width));
      tensors.emplace("key_norm", floats(width));
    }
    return tensors;
  }

  Experts experts(int64_t num) {
    const int64_t width = 13;
    const Experts experts = Experts(matrix(num * width, kShape.hidden), matrix(num * width, kShape.hidden),
                                    matrix(num * kShape.hidden, width), num);
    if (kind_ != Kind::kOfGroups) return experts;
    return experts.with_biases({floats(num * width), floats(num * width), floats(num * kShape.hidden)})
        .with_unit(ClampedSwiglu{1.702f, 0.5f});
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

template <class Tensor>
Tensor& tensor_of(ModelInput& input, size_t layer, const char* role) {
  return std::get<Tensor>(input.layers[layer].tensors.at(role));
}

std::vector<float>& vector_of(ModelInput& input, size_t layer, const char* role) {
  return tensor_of<std::vector<float>>(input, layer, role);
}

IndexerShape& index_of(ModelInput& input, size_t layer) {
  return *std::get<LatentShape>(input.layers[layer].mixer).index;
}

CompressedShape& shape_of_layer(ModelInput& input, size_t layer) {
  return std::get<CompressedShape>(input.layers[layer].mixer);
}

std::string refusal(void (*break_input)(ModelInput&, SmallModel&), Kind kind = Kind::kOfLatent) {
  SmallModel::break_input = break_input;
  std::string message = "none";
  try {
    SmallModel(nullptr, 1, kind);
  } catch (const std::invalid_argument& error) {
    message = error.what();
  }
  SmallModel::break_input = nullptr;
  return message;
}

bool begins_with(const std::string& text, const std::string& beginning) {
  return text.compare(0, beginning.size(), beginning) == 0;
}

}  // namespace

void expect_same_logits(const Kernels* kernels, Kind kind, bool is_half) {
  const std::vector<float> whole = SmallModel(kernels, 1, kind, is_half).run(0, kNumTokens);
  for (const float logit : whole) EXPECT(std::isfinite(logit));
  for (int num_threads : {1, 2, 5}) {
    for (int64_t step : {int64_t{1}, int64_t{2}, int64_t{4}, kNumTokens}) {
      SmallModel model(kernels, num_threads, kind, is_half);
      for (int64_t begin = 0; begin < kNumTokens; begin += step) {
        const int64_t end = std::min(begin + step, kNumTokens);
        const std::vector<float> logits = model.run(begin, end);
        EXPECT(std::memcmp(logits.data(), whole.data() + begin * kVocabulary,
                           logits.size() * sizeof(float)) == 0);
      }
    }
  }
}

TEST(logits_do_not_depend_on_steps_or_threads) {
  for (const Kind kind :
       {Kind::kOfLatent, Kind::kOfGroups, Kind::kSparse, Kind::kPooled, Kind::kGated, Kind::kCompressed}) {
    for (const std::string& isa : usable_isas()) {
      for (const bool is_half : {false, true}) expect_same_logits(find_isa(isa), kind, is_half);
    }
  }
}

TEST(every_layer_is_reported) {
  SmallModel model(nullptr, 2);
  model.run(0, 3);
  EXPECT_EQ(model.layers_done, 2);
}

TEST(a_step_without_tokens_does_nothing) {
  SmallModel model(nullptr, 2);
  EXPECT_EQ(model.run(3, 3).size(), size_t{0});
  EXPECT_EQ(model.layers_done, 0);
}

TEST(a_mismatched_weight_is_rejected_by_name) {
  EXPECT(begins_with(
      refusal([](ModelInput& w, SmallModel& m) { tensor_of<Matrix>(w, 1, "kv_a") = m.matrix(9, 32); }),
      "layers[1].kv_a is [9, 32]; expected [26, 32]"));
  EXPECT(begins_with(refusal([](ModelInput& w, SmallModel&) { vector_of(w, 0, "ffn_norm").pop_back(); }),
                     "layers[0].ffn_norm has 31 entries; expected 32"));
  EXPECT(begins_with(
      refusal([](ModelInput& w, SmallModel&) { tensor_of<HeadMatrix>(w, 0, "k_up").row_offset = 8; }),
      "layers[0].k_up is [45, 20] with head_stride 15 and row_offset 8"));
  EXPECT(begins_with(refusal([](ModelInput& w, SmallModel&) { vector_of(w, 1, "router_bias").pop_back(); }),
                     "layers[1].router_bias has 4 entries; expected 5"));
  EXPECT(begins_with(refusal([](ModelInput& w, SmallModel& m) { w.output = m.matrix(19, 31); }),
                     "output is [19, 31]; expected [19, 32]"));
  EXPECT(begins_with(refusal([](ModelInput& w, SmallModel&) { w.layers.pop_back(); }),
                     "the cache has 2 layers; expected 1"));
  EXPECT(begins_with(
      refusal([](ModelInput& w, SmallModel& m) { tensor_of<Matrix>(w, 1, "key") = m.matrix(9, 32); },
              Kind::kOfGroups),
      "layers[1].key is [9, 32]; expected [20, 32]"));
  EXPECT(begins_with(
      refusal([](ModelInput& w, SmallModel&) { vector_of(w, 0, "value_bias").pop_back(); }, Kind::kOfGroups),
      "layers[0].value_bias has 26 entries; expected 27"));
  EXPECT(begins_with(
      refusal([](ModelInput& w, SmallModel&) { std::get<GroupedShape>(w.layers[0].mixer).num_kv_heads = 4; },
              Kind::kOfGroups),
      "layers[0] has 6 heads for 4 of the cache"));
}

TEST(missing_wrong_or_unknown_tensors_are_rejected_by_name) {
  EXPECT(begins_with(refusal([](ModelInput& w, SmallModel&) { w.layers[0].tensors.erase("kv_a"); }),
                     "layers[0] has no kv_a; expected a matrix"));
  EXPECT(begins_with(refusal([](ModelInput& w, SmallModel&) { w.layers[1].tensors.erase("router"); }),
                     "layers[1] has no router; expected a matrix"));
  EXPECT(begins_with(
      refusal([](ModelInput& w, SmallModel& m) { w.layers[0].tensors.at("kv_a_norm") = m.matrix(1, 20); }),
      "layers[0].kv_a_norm is of another kind; expected a vector"));
  EXPECT(begins_with(
      refusal([](ModelInput& w, SmallModel& m) { w.layers[0].tensors.emplace("query", m.matrix(1, 20)); }),
      "layers[0].query is not used by this layer"));
}

TEST(a_mismatched_indexer_is_rejected_by_name) {
  const auto refused = [](void (*break_input)(ModelInput&, SmallModel&)) {
    return refusal(break_input, Kind::kSparse);
  };
  EXPECT(begins_with(
      refused([](ModelInput& w, SmallModel& m) { tensor_of<Matrix>(w, 0, "index_key") = m.matrix(8, 31); }),
      "layers[0].index_key is [8, 31]; expected [8, 32]"));
  EXPECT(
      begins_with(refused([](ModelInput& w, SmallModel&) { vector_of(w, 0, "index_key_shift").pop_back(); }),
                  "layers[0].index_key_shift has 7 entries; expected 8"));
  EXPECT(begins_with(refused([](ModelInput& w, SmallModel&) {
                       for (const char* role : {"index_query_up", "index_key", "index_key_norm",
                                                "index_key_shift", "index_head_weights"}) {
                         w.layers[0].tensors.erase(role);
                       }
                     }),
                     "layers[0] has no indexer; expected one in it or in a layer below"));
  EXPECT(begins_with(refused([](ModelInput& w, SmallModel&) { index_of(w, 1).top_k = 4; }),
                     "layers[1] attends to 4 positions; expected 3"));
  EXPECT(begins_with(refused([](ModelInput& w, SmallModel&) { index_of(w, 0).key_width = 5; }),
                     "layers[0] has index keys of 5; expected at least 6 entries"));
  EXPECT(begins_with(
      refused([](ModelInput& w, SmallModel&) { std::get<LatentShape>(w.layers[0].mixer).rotates = false; }),
      "layers[0] has an indexer that rotates 6 entries; expected 0"));
  EXPECT(begins_with(refused([](ModelInput& w, SmallModel&) { index_of(w, 1).num_heads = 0; }),
                     "layers[1] chooses 3 positions by 0 heads; expected at least 1 of each"));
  EXPECT(begins_with(refused([](ModelInput& w, SmallModel&) { w.layers[0].tensors.erase("query_down"); }),
                     "layers[0] has an indexer, but no query_down"));
}

TEST(gates_blocks_and_ngrams_that_do_not_fit_are_rejected_by_name) {
  const auto refused = [](void (*break_input)(ModelInput&, SmallModel&)) {
    return refusal(break_input, Kind::kGated);
  };
  EXPECT(begins_with(refused([](ModelInput& w, SmallModel&) { w.output_tensors.erase("output_stream_up"); }),
                     "output has no output_stream_up; expected a matrix"));
  EXPECT(
      begins_with(refused([](ModelInput& w, SmallModel&) { vector_of(w, 1, "ffn_stream_norm").pop_back(); }),
                  "layers[1].ffn_stream_norm has 95 entries; expected 96"));
  EXPECT(begins_with(refused([](ModelInput& w, SmallModel&) {
                       std::get<GroupedShape>(w.layers[1].mixer).index->averages = false;
                     }),
                     "layers[1] chooses 4 positions in pools of 2 by 5 heads; expected mean keys"));
  EXPECT(begins_with(refused([](ModelInput& w, SmallModel&) { w.layers[0].ngram->head_sizes[3] = 8; }),
                     "layers[0].ngram_table has 30 rows; head 3 expects 8 from row 23"));
  EXPECT(begins_with(refused([](ModelInput& w, SmallModel&) { w.layers[0].ngram->head_offsets[0] = -1; }),
                     "layers[0].ngram_table has 30 rows; head 0 expects 7 from row -1"));
  EXPECT(begins_with(refused([](ModelInput& w, SmallModel&) { w.layers[0].ngram->multipliers.resize(5); }),
                     "layers[0] embeds n-grams of up to 5 tokens; expected 2 to 4"));
  EXPECT(begins_with(refused([](ModelInput& w, SmallModel&) { w.layers[0].ngram->head_sizes.pop_back(); }),
                     "layers[0] has 3 sizes and 4 offsets of heads"));
}

TEST(pools_and_hyper_connections_that_do_not_fit_are_rejected_by_name) {
  const auto refused = [](void (*break_input)(ModelInput&, SmallModel&)) {
    return refusal(break_input, Kind::kPooled);
  };
  EXPECT(begins_with(refused([](ModelInput& w, SmallModel&) { index_of(w, 0).top_k = 3; }),
                     "layers[0] has pools of 2 tokens with keys of 8, and chooses 3 positions"));
  EXPECT(begins_with(
      refused([](ModelInput& w, SmallModel&) { vector_of(w, 0, "index_pool_offset").pop_back(); }),
      "layers[0].index_pool_offset has 15 entries; expected 16"));
  EXPECT(
      begins_with(refused([](ModelInput& w, SmallModel&) { vector_of(w, 1, "ffn_stream_base").pop_back(); }),
                  "layers[1].ffn_stream_base has 14 entries; expected 15"));
}

TEST(compressed_entries_and_tables_that_do_not_fit_are_rejected_by_name) {
  const auto refused = [](void (*break_input)(ModelInput&, SmallModel&)) {
    return refusal(break_input, Kind::kCompressed);
  };
  EXPECT(begins_with(refused([](ModelInput& w, SmallModel&) { vector_of(w, 0, "entry_offset").pop_back(); }),
                     "layers[0].entry_offset has 47 entries; expected 48"));
  EXPECT(begins_with(refused([](ModelInput& w, SmallModel&) { shape_of_layer(w, 1).output_groups = 3; }),
                     "layers[1] has 4 heads in 3 groups; expected equal groups"));
  EXPECT(begins_with(refused([](ModelInput& w, SmallModel&) { shape_of_layer(w, 0).index->top_k = 0; }),
                     "layers[0] chooses 0 entries by 5 heads; expected at least 1 of each"));
  EXPECT(begins_with(refused([](ModelInput& w, SmallModel&) { shape_of_layer(w, 0).ratio = 0; }),
                     "layers[0] has an indexer, but no entries"));
  EXPECT(begins_with(refused([](ModelInput& w, SmallModel&) { shape_of_layer(w, 1).window = 0; }),
                     "layers[1] has a window of 0 tokens"));
  EXPECT(begins_with(refused([](ModelInput& w, SmallModel&) { vector_of(w, 1, "expert_table")[3] = 5.0f; }),
                     "layers[1].expert_table has 5.000000; expected 0 to 4"));
  EXPECT(begins_with(refused([](ModelInput& w, SmallModel&) {
                       w.output_tensors["stream_end_base"] = std::vector<float>(2);
                     }),
                     "output.stream_end_base has 2 entries; expected 3"));
}
