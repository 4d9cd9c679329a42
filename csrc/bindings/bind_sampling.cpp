// Sampling for Python: check the arrays, release the GIL, call.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "cpu/dispatch.h"
#include "sampling/rows.h"
#include "threads/thread_pool.h"

namespace py = pybind11;
using namespace ballast;

namespace {

std::vector<int32_t> copy_ids(const char* name, const py::array& array) {
  const int32_t* data = read<int32_t>(name, array, {{"n"}});
  return {data, data + array.size()};
}

// Sets the numbers of `params`. Each must be in `given`, and no others may be.
void set_numbers(SamplingParams& params, const py::kwargs& given) {
  size_t num_set = 0;
  visit_numbers(params, [&](const char* name, auto& number) {
    if (!given.contains(name)) throw py::type_error(std::string("missing argument: ") + name);
    using Number = std::decay_t<decltype(number)>;
    try {
      number = py::cast<Number>(given[name]);
    } catch (const py::cast_error&) {
      throw py::type_error(std::string(name) + " is " + std::string(py::repr(given[name])) + "; expected a " +
                           (std::is_integral_v<Number> ? "whole number" : "number"));
    }
    ++num_set;
  });
  if (num_set == given.size()) return;
  for (const auto& [name, value] : given) {
    bool is_known = false;
    const auto key = py::cast<std::string>(name);
    visit_numbers(params, [&](const char* known, auto&) { is_known = is_known || key == known; });
    if (!is_known) throw py::type_error("unknown argument: " + key);
  }
}

SequenceSampler make_sampler(const py::array& stop_tokens,
                             const std::vector<std::pair<int32_t, double>>& logit_bias, uint64_t seed,
                             const py::array& prompt, const py::kwargs& numbers) {
  SamplingParams params{};
  set_numbers(params, numbers);
  params.stop_tokens = copy_ids("stop_tokens", stop_tokens);
  for (const auto& [token, bias] : logit_bias) params.biases.push_back({token, bias});
  params.seed = seed;
  return SequenceSampler(std::move(params), copy_ids("prompt", prompt));
}

// The logits of a step. Calls select rows of it.
struct Logits {
  const float* data;
  int64_t num_rows;
  int64_t vocabulary;

  explicit Logits(const py::array& array)
      : data(read<float>("logits", array, {{"R"}, {"V"}})),
        num_rows(array.shape(0)),
        vocabulary(array.shape(1)) {
    if (vocabulary < 1)
      throw py::value_error("logits is " + describe(array) + "; expected V to be 1 or more");
  }

  const float* row(int64_t index) const {
    if (index < 0 || index >= num_rows) {
      throw py::index_error("rows has " + std::to_string(index) + "; logits has " + std::to_string(num_rows));
    }
    return data + index * vocabulary;
  }
};

class Sampler {
 public:
  Sampler(ThreadPool& pool, const std::string& isa) : pool_(pool) {
    const Kernels* kernels = find_isa(isa);
    kernels_ = kernels == nullptr ? &reference_sampling() : &kernels->sampling();
  }

  py::tuple sample(const py::array& logits, const py::array& rows,
                   const std::vector<SequenceSampler*>& sequences,
                   const std::vector<std::optional<py::array>>& allowed) {
    const Logits step(logits);
    const auto num = static_cast<int64_t>(sequences.size());
    const int32_t* at = read<int32_t>("rows", rows, {{"rows", num}});
    if (allowed.size() != sequences.size()) {
      throw py::value_error("allowed has " + std::to_string(allowed.size()) +
                            " entries; expected one a row, " + std::to_string(num));
    }
    check_distinct(sequences);
    const int64_t mask_bytes = (step.vocabulary + 7) / 8;
    std::vector<SampledRow> sampled;
    sampled.reserve(static_cast<size_t>(num));
    for (int64_t i = 0; i < num; ++i) {
      const auto& mask = allowed[static_cast<size_t>(i)];
      const uint8_t* bits = nullptr;
      if (mask) {
        bits = read<uint8_t>("allowed", *mask, {{"bytes"}});
        if (mask->size() < mask_bytes) {
          throw py::value_error("allowed is " + describe(*mask) + "; expected a bit a token, " +
                                std::to_string(mask_bytes) + " bytes or more");
        }
      }
      sampled.push_back({sequences[static_cast<size_t>(i)], step.row(at[i]), bits, {}});
    }
    {
      const py::gil_scoped_release unlocked;
      sample_rows(pool_, *kernels_, step.vocabulary, sampled);
    }
    py::array_t<int32_t> tokens(num);
    py::array_t<double> highest(num);
    for (int64_t i = 0; i < num; ++i) {
      const Choice& choice = sampled[static_cast<size_t>(i)].choice;
      tokens.mutable_at(i) = choice.token;
      highest.mutable_at(i) = choice.highest;
    }
    return py::make_tuple(tokens, highest);
  }

  py::tuple score(const py::array& logits, const py::array& rows, const py::array& token_ids,
                  const py::array& num_top) {
    const Logits step(logits);
    const int64_t num = rows.size();
    const int32_t* at = read<int32_t>("rows", rows, {{"rows"}});
    const int32_t* tokens = read<int32_t>("token_ids", token_ids, {{"rows", num}});
    const int32_t* tops = read<int32_t>("num_top", num_top, {{"rows", num}});
    const auto bounded = [&](int32_t top) { return std::clamp<int64_t>(top, 0, step.vocabulary); };
    const int64_t most = num == 0 ? 0 : bounded(*std::max_element(tops, tops + num));
    py::array_t<double> highest(num);
    py::array_t<double> logprobs(num);
    py::array_t<int32_t> top_tokens({num, most});
    py::array_t<double> top_logprobs({num, most});
    std::fill_n(top_tokens.mutable_data(), num * most, -1);
    std::fill_n(top_logprobs.mutable_data(), num * most, 0.0);
    std::vector<ScoredRow> scored;
    scored.reserve(static_cast<size_t>(num));
    for (int64_t i = 0; i < num; ++i) {
      if (tokens[i] < 0 || tokens[i] >= step.vocabulary) {
        throw py::index_error("token_ids has " + std::to_string(tokens[i]) + "; the vocabulary has " +
                              std::to_string(step.vocabulary));
      }
      scored.push_back({step.row(at[i]),
                        tokens[i],
                        bounded(tops[i]),
                        {},
                        top_tokens.mutable_data() + i * most,
                        top_logprobs.mutable_data() + i * most});
    }
    {
      const py::gil_scoped_release unlocked;
      score_rows(pool_, *kernels_, step.vocabulary, scored);
    }
    for (int64_t i = 0; i < num; ++i) {
      const LogProbability& found = scored[static_cast<size_t>(i)].found;
      highest.mutable_at(i) = found.highest;
      logprobs.mutable_at(i) = found.logprob;
    }
    return py::make_tuple(highest, logprobs, top_tokens, top_logprobs);
  }

 private:
  static void check_distinct(std::vector<SequenceSampler*> sequences) {
    std::sort(sequences.begin(), sequences.end());
    if (std::adjacent_find(sequences.begin(), sequences.end()) != sequences.end()) {
      throw py::value_error("sequences has one twice; expected one a row");
    }
  }

  ThreadPool& pool_;
  const SamplingKernels* kernels_;
};

}  // namespace

void bind_sampling(py::module_ m) {
  using py::arg;
  py::class_<SequenceSampler>(m, "SequenceSampler")
      .def(py::init(&make_sampler), py::kw_only(), arg("stop_tokens"), arg("logit_bias"), arg("seed"),
           arg("prompt"));
  py::class_<Sampler>(m, "Sampler")
      .def(py::init<ThreadPool&, const std::string&>(), py::keep_alive<1, 2>(), arg("pool"), py::kw_only(),
           arg("isa"))
      .def("sample", &Sampler::sample, arg("logits"), py::kw_only(), arg("rows"), arg("sequences"),
           arg("allowed"))
      .def("score", &Sampler::score, arg("logits"), py::kw_only(), arg("rows"), arg("token_ids"),
           arg("num_top"));
}
