// Profiles of a machine that does not exist: real programs, and seconds from known rates.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "paradyse/plan/profile.h"
#include "paradyse/plan/strategy.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/profile/structured.h"

namespace paradyse {

struct PretendMachine {
  Rates rates{{2e-11, 5e-11, 2e-10, 4e-6, 4e-10, 6e-5, 4e-10, 6e-5, 4e-10, 6e-5, 0, 2e-5}};
  double backward = 1;  // seconds of the adjoints, times
  double noise = 0;     // relative, one sigma, of wall seconds that are measured
  // Of what it waits for, the share that a processor works meanwhile; below 0: processor seconds
  // are not measured.
  double worked = -1;
  double step_seconds = 0;  // more from kStepLength tokens on: a cache overflows
  static constexpr std::int64_t kStepLength = 1000;
  std::uint32_t seed = 1;

  // Without noise.
  [[nodiscard]] double seconds(const PartProbe& probe, std::size_t phase) const {
    const Amounts& amounts = probe.work.phases[phase];
    const bool idle = amounts == Amounts{};
    const double step = !idle && probe.length >= kStepLength ? step_seconds : 0;
    return rates.seconds(amounts) * (phase == 1 ? backward : 1) + step;
  }
};

inline TextShape pretend_model(std::int64_t hidden = 64) {
  return {
      .layers = 1,
      .hidden = hidden,
      .heads = 8,
      .kv_heads = 8,
      .head_dim = hidden / 8,
      .ffn = 3 * hidden,
      .vocab = 256};
}

struct PretendGroup {
  std::string attention;
  std::string mlp;
  Recompute recompute = Recompute::none;
  int ranks = 4;
  bool whole = false;  // weights, while a step lasts
};

// Attention, MLP and the rest of one document of `length` tokens on each group of a world of 4
// ranks and 2 cores; seconds are not filled in.
inline std::vector<PartProbe> pretend_work(
    const TextShape& model, const PretendGroup& group, std::int64_t length) {
  constexpr int kWorld = 4;
  const std::vector<LayerChoice> layers(
      static_cast<std::size_t>(model.layers),
      text_layer(group.attention, group.mlp, group.recompute, group.recompute));
  std::vector<PartProbe> probes(3);
  for (std::size_t i = 0; i < probes.size(); ++i) {
    probes[i] = {
        .part = i == 0   ? "attention"
                : i == 1 ? "mlp"
                         : "rest",
        .strategy = i == 0   ? group.attention
                    : i == 1 ? group.mlp
                             : "",
        .recompute = i == 2 ? "none" : to_string(group.recompute),
        .ranks = group.ranks,
        .length = length,
        .reshard_after_backward = !group.whole};
  }
  std::vector<std::vector<PartWork>> of_ranks(3, std::vector<PartWork>(kWorld));
  const int domain = group.whole ? 1 : kWorld;
  const Timeline parts =
      timeline(text_model(model), packed({length}, group.ranks, model.causal), domain, layers);
  for (const ScheduledPart& part : parts) {
    const std::string& name = part.program().part;
    const std::size_t i = name == "attention" ? 0 : name == "mlp" ? 1 : 2;
    for (int rank = 0; rank < kWorld; ++rank) {
      of_ranks[i][static_cast<std::size_t>(rank)] += part_work(
          part,
          {.group_rank = rank % group.ranks, .domain_rank = rank},
          precision_of(Dtype::float32));
    }
  }
  for (std::size_t i = 0; i < probes.size(); ++i) {
    probes[i].work = together(of_ranks[i], 2);
  }
  return probes;
}

inline std::vector<PretendGroup> pretend_groups() {
  return {
      {"MegatronTS", "hold", Recompute::none},
      {"MegatronTS", "hold", Recompute::full},
      {"UlyssesZ", "gather", Recompute::none},
      {"UlyssesZ", "gather", Recompute::light},
      {"METP", "pass", Recompute::none},
      {"DataZ", "gather", Recompute::none, 1}};
}

inline ProfileHeader pretend_header() {
  return {
      .machine = "pretended",
      .machine_sha256 = "0",
      .model = "llama",
      .model_sha256 = "1",
      .hidden = 64,
      .layers = 1,
      .ranks = 4,
      .ranks_per_node = 4,
      .cores = 2,
      .backend = "local",
      .device = "cpu",
      .dtype = Dtype::float32};
}

// How long the pretended machine takes for what a plan has it do, in place of a model that was
// fitted to it: other programs make it slower, and attention strategies are not what their work
// says.
class PretendTruth final : public TimeModel {
 public:
  explicit PretendTruth(PretendMachine machine) : machine_(machine) {}

  double slower = 1;                                   // all of it, times
  std::map<std::string, double> strategy_slower = {};  // its attention, times

  [[nodiscard]] std::string name() const override { return "truth"; }
  [[nodiscard]] bool by_work() const override { return true; }
  [[nodiscard]] PartSeconds seconds(const PartQuestion& question) const override {
    const auto own = strategy_slower.find(question.strategy);
    PartSeconds result;
    for (std::size_t i = 0; i < kPartPhases; ++i) {
      result.phases[i] = machine_.rates.seconds(question.work.phases[i]) * slower *
                         (i == 1 ? machine_.backward : 1) *
                         (own == strategy_slower.end() ? 1 : own->second);
    }
    return result;
  }

 private:
  PretendMachine machine_;
};

inline Profile pretend_profile(
    const PretendMachine& machine,
    const std::vector<std::int64_t>& lengths,
    const TextShape& model = pretend_model(),
    const std::vector<PretendGroup>& groups = pretend_groups()) {
  std::mt19937 random(machine.seed);
  std::normal_distribution<double> noise(0, machine.noise);
  Profile profile{.header = pretend_header()};
  for (const std::int64_t length : lengths) {
    for (const PretendGroup& group : groups) {
      for (PartProbe& probe : pretend_work(model, group, length)) {
        for (std::size_t i = 0; i < kPartPhases; ++i) {
          const double exact = machine.seconds(probe, i);
          const double seconds = machine.noise > 0 ? exact * std::exp(noise(random)) : exact;
          probe.seconds[i] = {.median = seconds, .least = seconds, .most = seconds};
          if (machine.worked >= 0) {
            PretendMachine processor = machine;
            for (const std::size_t waiting :
                 {std::size_t{Amounts::sent_bytes},
                  std::size_t{Amounts::collectives},
                  std::size_t{Amounts::bytes_across_nodes},
                  std::size_t{Amounts::collectives_across_nodes},
                  std::size_t{Amounts::weight_bytes},
                  std::size_t{Amounts::weight_collectives},
                  Rates::kPhase}) {
              processor.rates.values[waiting] *= machine.worked;
            }
            if (!probe.processor_seconds) {
              probe.processor_seconds.emplace();
            }
            (*probe.processor_seconds)[i] = processor.seconds(probe, i);
          }
        }
        profile.parts.push_back(std::move(probe));
      }
    }
  }
  return profile;
}

}  // namespace paradyse
