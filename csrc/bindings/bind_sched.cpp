// ballast._core.sched: the scheduler's Python interface. Its contract is runtime/ballast/_core/sched.pyi.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "sched/scheduler.h"

namespace py = pybind11;
using namespace ballast;

namespace {

using Tokens = py::array_t<int32_t, py::array::c_style>;

template <class T, bool = std::is_enum_v<T>>
struct Number {
  using type = T;
};
template <class T>
struct Number<T, true> {
  using type = std::underlying_type_t<T>;
};

// A read-only NumPy view. `owner`, the Python object that holds the vector, lives as long as the view does.
template <class T>
py::array view(const std::vector<T>& values, py::handle owner) {
  using Element = typename Number<T>::type;
  py::array array(py::dtype::of<Element>(), {static_cast<py::ssize_t>(values.size())}, values.data(), owner);
  array.attr("flags").attr("writeable") = false;
  return array;
}

template <class Owner, class T>
auto view_of(std::vector<T> Owner::* values) {
  return [values](const py::object& self) { return view(self.cast<const Owner&>().*values, self); };
}

std::vector<int32_t> to_vector(const Tokens& tokens, const char* name) {
  if (tokens.ndim() != 1) {
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(tokens.ndim()) +
                                " dimensions, not 1");
  }
  return {tokens.data(), tokens.data() + tokens.size()};
}

using Words = py::array_t<uint64_t, py::array::c_style>;

// [n, 2]: the low and the high word of each.
std::vector<Salt> to_salts(const Words& words) {
  if (words.ndim() != 2 || words.shape(1) != 2) throw std::invalid_argument("salts is not of shape [n, 2]");
  std::vector<Salt> salts;
  for (py::ssize_t i = 0; i < words.shape(0); ++i) salts.push_back({words.at(i, 0), words.at(i, 1)});
  return salts;
}

std::vector<BlockId> to_blocks(const Tokens& ids, const char* name) {
  std::vector<BlockId> blocks;
  for (const int32_t id : to_vector(ids, name)) blocks.push_back(BlockId{id});
  return blocks;
}

int32_t to_int32(const char* field, int64_t value) {
  if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
    throw std::invalid_argument(std::string(field) + "=" + std::to_string(value) +
                                ": does not fit in 32 bits");
  }
  return static_cast<int32_t>(value);
}

void require_at_least(int64_t least, const std::vector<std::pair<const char*, int64_t>>& values) {
  for (const auto& [name, value] : values) {
    if (value >= least) continue;
    throw py::value_error(std::string(name) + "=" + std::to_string(value) + "; expected " +
                          std::to_string(least) + " or more");
  }
}

Lane to_lane(int64_t value) {
  if (value == static_cast<int64_t>(Lane::kDecode)) return Lane::kDecode;
  if (value == static_cast<int64_t>(Lane::kPrefill)) return Lane::kPrefill;
  throw std::invalid_argument("lane=" + std::to_string(value) + ": there are Lane.DECODE and Lane.PREFILL");
}

using Tiers = std::vector<std::pair<int64_t, int64_t>>;  // blocks, most in transfer
// Of each tier: states, most in transfer, whether those at rest only, blocks that take as long.
using StateTiers = std::vector<std::tuple<int64_t, int64_t, bool, int64_t>>;
using Costs = std::vector<std::pair<int64_t, double>>;  // tokens, seconds

Costs to_costs(const CostCurve& curve) {
  Costs costs;
  for (const CostPoint& point : curve.points()) costs.emplace_back(point.tokens, point.seconds);
  return costs;
}

CostCurve to_curve(const char* name, const Costs& costs) {
  std::vector<CostPoint> points;
  for (const auto& [tokens, seconds] : costs) points.push_back({to_int32(name, tokens), seconds});
  return {name, std::move(points)};
}

SchedulerConfig make_config(int64_t num_blocks, int64_t block_tokens, int64_t max_batch_size,
                            int64_t chunk_size, int64_t prefill_chunk_size, bool prefix_cache,
                            const Costs& decode_costs, const Costs& prefill_costs,
                            std::optional<int64_t> prefill_lane_tokens,
                            std::optional<std::pair<int64_t, int64_t>> joint_tokens,
                            std::optional<double> max_stall_s, const Tiers& tiers,
                            std::optional<std::pair<int64_t, int64_t>> window, int64_t state_slots,
                            const StateTiers& state_tiers) {
  std::optional<int32_t> from;
  std::optional<std::pair<int32_t, int32_t>> joint;
  if (prefill_lane_tokens) from = to_int32("prefill_lane_tokens", *prefill_lane_tokens);
  if (joint_tokens) {
    joint.emplace(to_int32("joint_tokens", joint_tokens->first),
                  to_int32("joint_tokens", joint_tokens->second));
  }
  SchedulerConfig config{to_int32("num_blocks", num_blocks),
                         to_int32("block_tokens", block_tokens),
                         to_int32("max_batch_size", max_batch_size),
                         to_int32("chunk_size", chunk_size),
                         to_int32("prefill_chunk_size", prefill_chunk_size),
                         prefix_cache,
                         to_curve("decode_costs", decode_costs),
                         to_curve("prefill_costs", prefill_costs),
                         from,
                         joint,
                         max_stall_s,
                         {}};
  for (const auto& [blocks, storing] : tiers) {
    config.tiers.push_back({to_int32("tiers", blocks), to_int32("tiers", storing)});
  }
  if (!state_tiers.empty() && state_tiers.size() != tiers.size()) {
    throw std::invalid_argument("state_tiers: " + std::to_string(state_tiers.size()) + " entries for " +
                                std::to_string(tiers.size()) + " tiers; expected one for each, or none");
  }
  for (size_t t = 0; t < state_tiers.size(); ++t) {
    const auto& [states, storing, at_rest, blocks_per_state] = state_tiers[t];
    TierConfig& tier = config.tiers[t];
    tier.num_states = to_int32("state_tiers", states);
    tier.most_storing_states = to_int32("state_tiers", storing);
    tier.takes_rested_states = at_rest;
    tier.blocks_per_state = to_int32("state_tiers", blocks_per_state);
  }
  if (window) config.window = {to_int32("window", window->first), to_int32("window blocks", window->second)};
  config.states.num_slots = to_int32("state_slots", state_slots);
  config.validate();
  return config;
}

std::vector<std::tuple<int64_t, std::string, int32_t, int32_t, int32_t>> describe(
    const Scheduler& scheduler, std::optional<int64_t> max_waiting) {
  std::vector<std::tuple<int64_t, std::string, int32_t, int32_t, int32_t>> lines;
  for (const Description& each : max_waiting ? scheduler.describe(*max_waiting) : scheduler.describe()) {
    lines.emplace_back(static_cast<int64_t>(each.seq), each.state, each.num_tokens, each.num_computed_tokens,
                       each.num_blocks);
  }
  return lines;
}

std::map<std::string, Costs> costs_of(const Scheduler& scheduler) {
  const StepCosts& costs = scheduler.costs();
  return {{"decode", to_costs(costs.decode())},
          {"decode_in_pass", to_costs(costs.decode(/*in_pass=*/true))},
          {"prefill", to_costs(costs.prefill())},
          {"prefill_during_decode", to_costs(costs.prefill(/*during_decode=*/true))}};
}

QueueState queue_state(const Scheduler& scheduler, std::optional<double> mean_reply_tokens,
                       double prompt_share, std::optional<double> now_s) {
  return scheduler.queue_state({mean_reply_tokens}, prompt_share, now_s);
}

}  // namespace

void bind_sched(py::module_ m) {
  m.attr("MAX_IDLE_TOKENS") = kMaxIdleTokens;
  m.attr("EARLIER_TOKENS") = kEarlierTokens;

  m.def(
      "num_window_blocks",
      [](int64_t window, int64_t num_blocks, int64_t block_tokens, int64_t max_batch_size,
         int64_t step_tokens, bool keeps_borders, bool has_tiers) {
        require_at_least(1, {{"window", window},
                             {"num_blocks", num_blocks},
                             {"block_tokens", block_tokens},
                             {"max_batch_size", max_batch_size},
                             {"step_tokens", step_tokens}});
        return (keeps_borders ? ample_window_blocks : least_window_blocks)(
            {to_int32("window", window), to_int32("num_blocks", num_blocks),
             to_int32("block_tokens", block_tokens), to_int32("max_batch_size", max_batch_size),
             to_int32("step_tokens", step_tokens), has_tiers});
      },
      py::kw_only(), py::arg("window"), py::arg("num_blocks"), py::arg("block_tokens"),
      py::arg("max_batch_size"), py::arg("step_tokens"), py::arg("keeps_borders") = true,
      py::arg("has_tiers") = false);

  m.def(
      "num_state_slots",
      [](int64_t capacity_tokens, int64_t max_batch_size, int64_t least_snapshots,
         std::optional<int64_t> num_snapshots) {
        require_at_least(0, {{"capacity_tokens", capacity_tokens},
                             {"max_batch_size", max_batch_size},
                             {"least_snapshots", least_snapshots},
                             {"num_snapshots", num_snapshots.value_or(0)}});
        const int64_t of_requests = least_state_slots(to_int32("max_batch_size", max_batch_size));
        const int64_t usual = usual_snapshots(capacity_tokens, of_requests, least_snapshots);
        return to_int32("state slots", of_requests + num_snapshots.value_or(usual));
      },
      py::kw_only(), py::arg("capacity_tokens"), py::arg("max_batch_size"), py::arg("least_snapshots"),
      py::arg("num_snapshots") = py::none());

  py::class_<SchedulerConfig>(m, "SchedulerConfig")
      .def(py::init(&make_config), py::kw_only(), py::arg("num_blocks"), py::arg("block_tokens"),
           py::arg("max_batch_size"), py::arg("chunk_size"), py::arg("prefill_chunk_size"),
           py::arg("prefix_cache") = true, py::arg("decode_costs") = Costs{},
           py::arg("prefill_costs") = Costs{}, py::arg("prefill_lane_tokens") = py::none(),
           py::arg("joint_tokens") = py::none(), py::arg("max_stall_s") = py::none(),
           py::arg("tiers") = Tiers{}, py::arg("window") = py::none(), py::arg("state_slots") = 0,
           py::arg("state_tiers") = StateTiers{})
      .def_readonly("num_blocks", &SchedulerConfig::num_blocks)
      .def_readonly("block_tokens", &SchedulerConfig::block_tokens)
      .def_readonly("max_batch_size", &SchedulerConfig::max_batch_size)
      .def_readonly("chunk_size", &SchedulerConfig::chunk_size)
      .def_readonly("prefill_chunk_size", &SchedulerConfig::prefill_chunk_size)
      .def_readonly("prefix_cache", &SchedulerConfig::prefix_cache)
      .def_readonly("prefill_lane_tokens", &SchedulerConfig::prefill_lane_tokens)
      .def_readonly("joint_tokens", &SchedulerConfig::joint_tokens)
      .def_readonly("max_stall_s", &SchedulerConfig::max_stall_s)
      .def_property_readonly("decode_costs",
                             [](const SchedulerConfig& self) { return to_costs(self.decode_costs); })
      .def_property_readonly("prefill_costs",
                             [](const SchedulerConfig& self) { return to_costs(self.prefill_costs); })
      .def_property_readonly("has_prefill_lane", &SchedulerConfig::has_prefill_lane)
      .def_property_readonly("window",
                             [](const SchedulerConfig& self) -> std::optional<std::pair<int32_t, int32_t>> {
                               if (self.window.tokens == 0) return {};
                               return {{self.window.tokens, self.window.num_blocks}};
                             })
      .def_property_readonly("state_slots", [](const SchedulerConfig& self) { return self.states.num_slots; })
      .def_property_readonly("state_tiers",
                             [](const SchedulerConfig& self) {
                               StateTiers tiers;
                               for (const TierConfig& each : self.tiers) {
                                 tiers.emplace_back(each.num_states, each.most_storing_states,
                                                    each.takes_rested_states, each.blocks_per_state);
                               }
                               return tiers;
                             })
      .def_property_readonly("tiers", [](const SchedulerConfig& self) {
        Tiers tiers;
        for (const TierConfig& each : self.tiers) {
          tiers.emplace_back(each.num_blocks, each.most_storing);
        }
        return tiers;
      });

  py::class_<Lane> lanes(m, "Lane");
  lanes.attr("DECODE") = static_cast<int>(Lane::kDecode);
  lanes.attr("PREFILL") = static_cast<int>(Lane::kPrefill);

  py::class_<Finish> finish(m, "Finish");
  finish.attr("NONE") = static_cast<int>(Finish::kNone);
  finish.attr("STOP") = static_cast<int>(Finish::kStop);
  finish.attr("LENGTH") = static_cast<int>(Finish::kLength);

  py::class_<Plan, std::shared_ptr<Plan>>(m, "Plan")
      .def_property_readonly("num_requests", &Plan::num_requests)
      .def_property_readonly("num_tokens", &Plan::num_tokens)
      .def_readonly("num_decode", &Plan::num_decode)
      .def_readonly("was_predicted", &Plan::was_predicted)
      .def_property_readonly("seqs", view_of(&Plan::seqs))
      .def_property_readonly("query_indptr", view_of(&Plan::query_indptr))
      .def_property_readonly("token_ids", view_of(&Plan::token_ids))
      .def_property_readonly("earlier_ids", view_of(&Plan::earlier_ids))
      .def_property_readonly("positions", view_of(&Plan::positions))
      .def_property_readonly("slots", view_of(&Plan::slots))
      .def_property_readonly("kv_indptr", view_of(&Plan::kv_indptr))
      .def_property_readonly("kv_indices", view_of(&Plan::kv_indices))
      .def_property_readonly("window_slots", view_of(&Plan::window_slots))
      .def_property_readonly("window_indices", view_of(&Plan::window_indices))
      .def_property_readonly("states_in", view_of(&Plan::states_in))
      .def_property_readonly("states_out", view_of(&Plan::states_out))
      .def_property_readonly("save_indptr", view_of(&Plan::save_indptr))
      .def_property_readonly("save_ends", view_of(&Plan::save_ends))
      .def_property_readonly("save_slots", view_of(&Plan::save_slots))
      .def_property_readonly("kv_lens", view_of(&Plan::kv_lens))
      .def_property_readonly("samples", view_of(&Plan::samples))
      .def_property_readonly("logits_at", view_of(&Plan::logits_at))
      .def_property_readonly("preempted", view_of(&Plan::preempted));

  py::class_<Committed, std::shared_ptr<Committed>>(m, "Committed")
      .def_property_readonly("seqs", view_of(&Committed::seqs))
      .def_property_readonly("tokens", view_of(&Committed::tokens))
      .def_property_readonly("finish", view_of(&Committed::finish));

  py::class_<Move> moves(m, "Move");
  moves.attr("STORE") = static_cast<int>(Move::kStore);
  moves.attr("DROP") = static_cast<int>(Move::kDrop);
  moves.attr("FETCH") = static_cast<int>(Move::kFetch);
  moves.attr("STORE_STATE") = static_cast<int>(Move::kStoreState);

  py::class_<Transfer>(m, "Transfer")
      .def_property_readonly("move", [](const Transfer& self) { return static_cast<int>(self.move); })
      .def_readonly("tier", &Transfer::tier)
      .def_property_readonly("tier_block",
                             [](const Transfer& self) { return static_cast<int32_t>(self.tier_block); })
      .def_property_readonly("block", [](const Transfer& self) { return static_cast<int32_t>(self.block); })
      .def_property_readonly("window_block",
                             [](const Transfer& self) { return static_cast<int32_t>(self.window_block); })
      .def_property_readonly("parent", [](const Transfer& self) { return static_cast<int32_t>(self.parent); })
      .def_property_readonly("tier_state",
                             [](const Transfer& self) { return static_cast<int32_t>(self.tier_state); })
      .def_property_readonly("state", [](const Transfer& self) { return static_cast<int32_t>(self.state); })
      .def_property_readonly("seq", [](const Transfer& self) { return static_cast<int64_t>(self.seq); })
      .def_property_readonly("tokens", view_of(&Transfer::tokens))
      .def_property_readonly("salt",
                             [](const Transfer& self) { return std::pair(self.salt.low, self.salt.high); });

  py::class_<TierStats>(m, "TierStats")
      .def_readonly("capacity_tokens", &TierStats::capacity_tokens)
      .def_readonly("cached_tokens", &TierStats::cached_tokens)
      .def_readonly("fetched_tokens", &TierStats::fetched_tokens)
      .def_readonly("dropped_tokens", &TierStats::dropped_tokens)
      .def_readonly("states", &TierStats::states);

  py::class_<Stats>(m, "Stats")
      .def_readonly("waiting", &Stats::waiting)
      .def_readonly("running", &Stats::running)
      .def_readonly("capacity_tokens", &Stats::capacity_tokens)
      .def_readonly("used_tokens", &Stats::used_tokens)
      .def_readonly("cached_tokens", &Stats::cached_tokens)
      .def_readonly("window_used_tokens", &Stats::window_used_tokens)
      .def_readonly("window_cached_tokens", &Stats::window_cached_tokens)
      .def_readonly("preemptions", &Stats::preemptions)
      .def_readonly("prefix_query_tokens", &Stats::prefix_query_tokens)
      .def_readonly("prefix_hit_tokens", &Stats::prefix_hit_tokens)
      .def_readonly("prefix_cut_tokens", &Stats::prefix_cut_tokens)
      .def_readonly("snapshots", &Stats::snapshots)
      .def_readonly("snapshot_hits", &Stats::snapshot_hits)
      .def_readonly("snapshots_evicted", &Stats::snapshots_evicted)
      .def_readonly("state_slots", &Stats::state_slots)
      .def_readonly("state_slots_used", &Stats::state_slots_used)
      .def_readonly("fetching", &Stats::fetching)
      .def_readonly("unsent", &Stats::unsent)
      .def_readonly("tiers", &Stats::tiers);

  py::class_<QueueState>(m, "QueueState")
      .def(
          "arrive",
          [](QueueState& self, int64_t priority, int64_t client, int64_t prompt_tokens, int64_t max_tokens) {
            self.arrive(to_int32("priority", priority), client, to_int32("prompt_tokens", prompt_tokens),
                        to_int32("max_tokens", max_tokens));
          },
          py::arg("priority"), py::arg("client"), py::arg("prompt_tokens"), py::arg("max_tokens"))
      .def(
          "predicted_wait_s",
          [](const QueueState& self, int64_t priority, int64_t client, int64_t prompt_tokens,
             int64_t max_tokens, double horizon_s, double elapsed_s) {
            return self.predicted_wait_s(to_int32("priority", priority), client,
                                         to_int32("prompt_tokens", prompt_tokens),
                                         to_int32("max_tokens", max_tokens), horizon_s, elapsed_s);
          },
          py::arg("priority"), py::arg("client"), py::arg("prompt_tokens"), py::arg("max_tokens"),
          py::kw_only(), py::arg("horizon_s"), py::arg("elapsed_s") = 0.0);

  py::class_<Scheduler>(m, "Scheduler")
      .def(py::init<const SchedulerConfig&>(), py::arg("config"))
      .def(
          "add",
          [](Scheduler& self, int64_t seq, const Tokens& prompt, int64_t max_tokens,
             const Tokens& stop_tokens, int64_t min_tokens, int64_t priority, std::optional<int64_t> leader,
             bool scores_prompt, int64_t client, std::pair<uint64_t, uint64_t> salt,
             std::vector<int32_t> snapshots_at, std::vector<int32_t> snapshot_before) {
            auto prompt_ids = to_vector(prompt, "prompt");
            auto stop_ids = to_vector(stop_tokens, "stop_tokens");
            AddOptions options;
            options.min_tokens = min_tokens;
            options.priority = to_int32("priority", priority);
            options.scores_prompt = scores_prompt;
            options.client = client;
            options.salt = {salt.first, salt.second};
            options.snapshots_at = std::move(snapshots_at);
            options.snapshot_before = std::move(snapshot_before);
            if (leader) options.leader = SeqId{*leader};
            const py::gil_scoped_release no_gil;
            self.add(SeqId{seq}, std::move(prompt_ids), max_tokens, std::move(stop_ids), options);
          },
          py::arg("seq"), py::arg("prompt").noconvert(), py::arg("max_tokens"),
          py::arg("stop_tokens").noconvert(), py::arg("min_tokens") = 0, py::kw_only(),
          py::arg("priority") = 0, py::arg("leader") = py::none(), py::arg("scores_prompt") = false,
          py::arg("client") = 0, py::arg("salt") = std::pair<uint64_t, uint64_t>{},
          py::arg("snapshots_at") = std::vector<int32_t>{},
          py::arg("snapshot_before") = std::vector<int32_t>{})
      .def(
          "abort", [](Scheduler& self, int64_t seq) { return self.abort(SeqId{seq}); }, py::arg("seq"))
      .def(
          "fail", [](Scheduler& self, int64_t seq, bool forget) { self.fail(SeqId{seq}, forget); },
          py::arg("seq"), py::kw_only(), py::arg("forget"))
      .def(
          "propose",
          [](Scheduler& self, int64_t seq, const Tokens& draft_tokens) {
            self.propose(SeqId{seq}, to_vector(draft_tokens, "draft_tokens"));
          },
          py::arg("seq"), py::arg("draft_tokens").noconvert())
      .def(
          "plan",
          [](Scheduler& self, int64_t lane, std::optional<double> now_s) {
            const Lane of = to_lane(lane);
            const py::gil_scoped_release no_gil;
            return self.plan(of, now_s);
          },
          py::arg("lane") = static_cast<int>(Lane::kDecode), py::kw_only(), py::arg("now_s") = py::none())
      .def("plan_ahead", &Scheduler::plan_ahead, py::call_guard<py::gil_scoped_release>())
      .def(
          "commit",
          [](Scheduler& self, const Tokens& tokens, int64_t lane, std::optional<double> now_s) {
            const auto sampled = to_vector(tokens, "tokens");
            const Lane of = to_lane(lane);
            const py::gil_scoped_release no_gil;
            return self.commit(sampled, of, now_s);
          },
          py::arg("tokens").noconvert(), py::arg("lane") = static_cast<int>(Lane::kDecode), py::kw_only(),
          py::arg("now_s") = py::none())
      .def("take_transfers", &Scheduler::take_transfers)
      .def(
          "fetched",
          [](Scheduler& self, int64_t seq, int64_t num_blocks, bool is_damaged, bool is_state_damaged) {
            const Damage damage = is_damaged         ? Damage::kBlock
                                  : is_state_damaged ? Damage::kState
                                                     : Damage::kNone;
            self.fetched(SeqId{seq}, to_int32("num_blocks", num_blocks), damage);
          },
          py::arg("seq"), py::arg("num_blocks"), py::kw_only(), py::arg("is_damaged") = false,
          py::arg("is_state_damaged") = false)
      .def(
          "measured",
          [](Scheduler& self, int64_t tier, double block_seconds) {
            self.measured(to_int32("tier", tier), block_seconds);
          },
          py::arg("tier"), py::arg("block_seconds"))
      .def(
          "coming",
          [](Scheduler& self, int64_t seq, int64_t tier, int64_t num_blocks) {
            self.coming(SeqId{seq}, to_int32("tier", tier), to_int32("num_blocks", num_blocks));
          },
          py::arg("seq"), py::arg("tier"), py::arg("num_blocks"))
      .def(
          "is_worth_fetching",
          [](const Scheduler& self, int64_t seq) { return self.is_worth_fetching(SeqId{seq}); },
          py::arg("seq"))
      .def(
          "stored",
          [](Scheduler& self, int64_t tier, bool is_whole) { self.stored(to_int32("tier", tier), is_whole); },
          py::arg("tier"), py::kw_only(), py::arg("is_whole"))
      .def(
          "stored_state",
          [](Scheduler& self, int64_t tier, bool is_whole) {
            self.stored_state(to_int32("tier", tier), is_whole);
          },
          py::arg("tier"), py::kw_only(), py::arg("is_whole"))
      .def("rest", &Scheduler::rest)
      .def(
          "restore",
          [](Scheduler& self, int64_t tier, const Tokens& blocks, const Tokens& parents, const Tokens& tokens,
             const Words& salts, const std::vector<bool>& have_windows, const std::vector<int32_t>& states) {
            std::vector<StateSlot> slots;
            for (const int32_t state : states) slots.push_back(StateSlot{state});
            self.restore(to_int32("tier", tier), to_blocks(blocks, "blocks"), to_blocks(parents, "parents"),
                         to_vector(tokens, "tokens"), to_salts(salts), have_windows, slots);
          },
          py::arg("tier"), py::arg("blocks").noconvert(), py::arg("parents").noconvert(),
          py::arg("tokens").noconvert(), py::arg("salts").noconvert(),
          py::arg("have_windows") = std::vector<bool>{}, py::arg("states") = std::vector<int32_t>{})
      .def(
          "cached_tokens", [](const Scheduler& self, int64_t seq) { return self.cached_tokens(SeqId{seq}); },
          py::arg("seq"))
      .def("stats", &Scheduler::stats)
      .def(
          "snapshot_positions",
          [](const Scheduler& self, int64_t most) {
            return self.snapshot_positions(static_cast<size_t>(to_int32("most", most)));
          },
          py::arg("most"))
      .def("next_prompt_step_s", &Scheduler::next_prompt_step_s)
      .def("costs", &costs_of)
      .def("queue_state", &queue_state, py::kw_only(), py::arg("mean_reply_tokens") = py::none(),
           py::arg("prompt_share") = 1.0, py::arg("now_s") = py::none())
      .def("check", &Scheduler::check)
      .def("describe", &describe, py::arg("max_waiting") = py::none());
}
