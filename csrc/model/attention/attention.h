// The kinds of attention, among them linear attention with recurrent state: their sizes and their common
// interface. Each kind has its own file, which declares and checks its tensors and computes with them.
//
// Shapes: T tokens, D hidden, H heads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "cpu/kernels.h"
#include "model/shared/layer_tensors.h"
#include "model/shared/step.h"
#include "ops/attention/position_choice.h"

namespace ballast {

struct IndexerShape {
  int64_t num_heads;
  int64_t key_width;
  int64_t top_k;     // positions that a token attends to, at most
  bool pairs_apart;  // whether pairs of the rotation are rope_dim / 2 apart, else neighbours
  // Neighbouring tokens that share a key and are chosen together. With more than 1, a token also attends to
  // those of its own pool if that is incomplete.
  int64_t pool = 1;
  bool averages = false;  // whether the key of a pool is the mean of its tokens' keys, else weighted by gates

  int64_t most_chosen() const { return top_k + pool - 1; }  // of a token
};

struct LatentShape {
  int64_t num_heads;
  int64_t kv_lora_rank;
  int64_t nope_dim;
  int64_t rope_dim;
  int64_t v_dim;
  float softmax_scale;
  // If set, a token attends to selected positions only. A layer without an indexer uses the selection of the
  // nearest indexer below it (GLM-5.2, arXiv 2603.12201).
  std::optional<IndexerShape> index;
  // Whether the position rotates the last rope_dim entries of queries and of the key. They exist in any case.
  bool rotates = true;

  int64_t latent_dim() const { return kv_lora_rank + rope_dim; }
  int64_t query_dim() const { return nope_dim + rope_dim; }  // of one head
};

struct GroupedShape {
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;  // of queries and keys
  int64_t v_dim;     // of a head's value
  int64_t rope_dim;  // of a head, its first entries; the others are not rotated
  float softmax_scale;
  bool norms_all_heads;         // whether norms of queries and keys span all heads of a token, else each head
  int64_t window = 0;           // positions that a token sees, its own the last; 0 for all
  float value_scale = 1;        // factor of values
  bool softplus_gates = false;  // whether outputs are multiplied by the softplus of gates, else the sigmoid
  bool gates_entries = false;   // whether each entry of a head's output has a gate, else each head
  // Whether the query matrix also computes the gates: the query of a head is followed by the gates of the
  // entries of its output, and v_dim is head_dim.
  bool gates_queries = false;
  // If set, a token attends to selected positions only.
  std::optional<IndexerShape> index = {};
};

// Gated DeltaNet (arXiv 2412.06464): linear attention with a state of [key_dim, v_dim] per head, decayed and
// corrected by each token. Queries, keys and values pass a short convolution.
struct DeltaNetShape {
  int64_t num_heads;      // of values
  int64_t num_key_heads;  // of queries and keys
  int64_t key_dim;        // of a head
  int64_t v_dim;          // of a head
  int64_t conv_taps;
  bool heads_alternate;        // see DeltaShape
  bool sigmoid_gates = false;  // whether outputs are multiplied by the sigmoid of gates, else the silu

  int64_t key_width() const { return num_key_heads * key_dim; }
  int64_t value_width() const { return num_heads * v_dim; }
  int64_t channels() const { return 2 * key_width() + value_width(); }  // of the convolution
};

// Kimi Delta Attention (arXiv 2510.26692): as Gated DeltaNet, with a decay for each row of a state, and as
// many heads of keys as of values, all of one width.
struct KimiDeltaShape {
  int64_t num_heads;
  int64_t head_dim;
  int64_t conv_taps;
  // Below 0: a row's decay is exp(lower_bound * sigmoid(-rate * x)); 0: exp(rate * softplus(x)).
  float lower_bound = 0;

  int64_t width() const { return num_heads * head_dim; }  // of all heads
};

// Attention to the last positions and to compressed entries, each of `ratio` tokens (DeepSeek-V4). Keys have
// one head, and are values as well.
struct CompressedShape {
  int64_t num_heads;
  int64_t head_dim;
  int64_t rope_dim;       // of a head, its last entries
  int64_t window;         // positions that a token sees, its own the last
  int64_t ratio;          // 0: there are no entries
  int64_t output_groups;  // of heads, each with an output matrix of low rank
  // With it a token attends to chosen entries, which overlap; else to all that are complete.
  std::optional<IndexShape> index;
};

using MixerShape = std::variant<LatentShape, GroupedShape, DeltaNetShape, KimiDeltaShape, CompressedShape>;

// Buffers between operations, sized for the largest step so far.
struct AttentionMemory {
  std::vector<float> query_down;      // [T, q_lora_rank]
  std::vector<float> query;           // [T, H, nope + rope or head_dim]
  std::vector<float> query_nope;      // [T, H, nope]
  std::vector<float> query_latent;    // [T, H, kv_lora_rank]
  std::vector<float> latent;          // [T, kv_lora_rank + rope]
  std::vector<float> attended;        // [T, H, kv_lora_rank]
  std::vector<float> key;             // [T, kv heads, head_dim]
  std::vector<float> value;           // [T, kv heads, v]
  std::vector<float> values;          // [T, H, v]
  std::vector<float> gates;           // [T, H] or [T, H, v]
  std::vector<float> projected;       // [T, a product of several matrices]
  std::vector<float> mixed;           // [T, channels], queries, keys and values before the convolution
  std::vector<float> convolved;       // [T, channels], or the queries of all tokens, then keys, then values
  std::vector<float> decays;          // [T, H] or [T, H, rows of a state]
  std::vector<float> betas;           // [T, H]
  std::vector<float> index_query;     // [T, index heads, key_width]
  std::vector<float> index_key;       // [T, key_width]
  std::vector<float> head_weights;    // [T, index heads]
  std::vector<float> pool_gates;      // [T, key_width]
  std::vector<float> pooled_key;      // [T, key_width]
  std::vector<int32_t> last_pools;    // [T] the last complete pool that a token sees; -1: none
  std::vector<int32_t> chosen_pools;  // [T, top_k / pool]
  std::vector<float> entry_values;    // [T, columns of a compressor]
  std::vector<float> entry_gates;     // [T, columns of a compressor]
  std::vector<float> entries;         // [T, width of an entry], of tokens that complete one
  std::vector<int32_t> num_listed;    // [T] rows that a token attends to
  // Positions selected by the nearest earlier layer with an indexer.
  std::vector<int32_t> chosen;      // [T, most_chosen]
  std::vector<int32_t> num_chosen;  // [T]
};

// A layer's call; null kernels stand for the reference.
struct AttentionCall {
  ThreadPool& pool;
  const Kernels* kernels;
  const RopeTable& rope;
  float rms_eps;
  const Step& step;
  AttentionMemory& memory;
};

// The attention of a layer.
class Attention {
 public:
  virtual ~Attention() = default;

  // Floats per token in each plane of the layer's cache.
  virtual std::vector<int64_t> plane_widths() const = 0;
  // Floats of each recurrent state of a sequence.
  virtual std::vector<int64_t> state_floats() const { return {}; }
  // Entries of a head that are rotated by the position; 0 if positions do not count.
  virtual int64_t rope_dim() const = 0;
  // Whether a token sees a window only, so the layer uses the step's window_slots and window_batch.
  virtual bool has_window() const { return false; }
  // The sizes of the selection of positions; null if it attends to all positions.
  virtual const IndexerShape* index() const { return nullptr; }
  virtual bool has_indexer() const { return false; }
  // Writes the step's rows of the planes and its states; out [T, D] from normed [T, D].
  virtual void attend(const AttentionCall& call, const float* normed, const LayerCache& cache,
                      float* out) const = 0;
};

// All throw std::invalid_argument like `LayerTensors`, and for sizes that contradict each other.
std::shared_ptr<const Attention> make_attention(const LatentShape& shape, int64_t hidden,
                                                LayerTensors& tensors);
std::shared_ptr<const Attention> make_attention(const GroupedShape& shape, int64_t hidden,
                                                LayerTensors& tensors);
std::shared_ptr<const Attention> make_attention(const DeltaNetShape& shape, int64_t hidden,
                                                LayerTensors& tensors);
std::shared_ptr<const Attention> make_attention(const KimiDeltaShape& shape, int64_t hidden,
                                                LayerTensors& tensors);
std::shared_ptr<const Attention> make_attention(const CompressedShape& shape, int64_t hidden,
                                                LayerTensors& tensors);

}  // namespace ballast
