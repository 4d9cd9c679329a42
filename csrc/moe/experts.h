// The routed experts of one layer, grouped: each chosen expert's weights are read once a call, whatever the
// batch.
#pragma once

#include <cstdint>

#include "moe/grouping.h"
#include "numa/thread_pool.h"
#include "quant/matrix.h"

namespace ballast {

class Experts {
 public:
  // Stacked matrices: gate and up [E * I, D], down [E * D, I]; all packed, with a head for each expert, or
  // none. Throws std::invalid_argument when they do not fit.
  Experts(const Matrix& gate, const Matrix& up, const Matrix& down, int64_t num_experts);

  int64_t num_experts() const { return num_experts_; }
  int64_t hidden_width() const { return gate_.cols(); }
  int64_t expert_width() const { return down_.cols(); }

  // out [T, D], out[t] = Σ weights[t, k] · down_e(silu(gate_e x[t]) * up_e x[t]) with e = ids[t, k], added in
  // ascending order of e; x [T, D]; ids, weights [T, k]. Throws std::out_of_range for an id that is no
  // expert.
  void forward(ThreadPool& pool, const float* x, int64_t num_tokens, const int32_t* ids, const float* weights,
               int64_t num_chosen, float* out) const;

 private:
  void forward_in_place(ThreadPool& pool, const float* x, int64_t num_tokens, const Grouping& all,
                        float* out) const;
  void forward_packed(ThreadPool& pool, const float* x, int64_t num_tokens, const Grouping& all,
                      float* out) const;

  Matrix gate_;
  Matrix up_;
  Matrix down_;
  int64_t num_experts_;
};

}  // namespace ballast
