#include "src/plan/search/layers/part_choices.h"

#include <iterator>
#include <utility>

namespace paradyse {

SavingChoices saving_choices(const PlanningTask& task) {
  SavingChoices all{.levels = {std::begin(kRecomputeLevels), std::end(kRecomputeLevels)}};
  if (!task.training) {
    return {.levels = {Recompute::none}, .whole = false};  // nothing is saved
  }
  if (!task.recompute.empty()) {
    const LayerRecompute asked = layer_recompute(task.recompute);
    all = {.levels = {asked.parts}, .part_by_part = !asked.layer, .whole = asked.layer};
  }
  if (task.offload) {
    all.offload.push_back(true);
  }
  return all;
}

std::vector<PartChoice> with_savings(PartChoice choice, const SavingChoices& savings) {
  choice.with_layer = false;
  std::vector<PartChoice> all;
  for (const Recompute level : savings.levels) {
    choice.recompute = level;
    const PartChoice plain = canonical(choice);
    if (savings.levels.size() > 1 && plain.recompute != level) {
      continue;
    }
    for (const bool offload : savings.offload) {
      all.push_back(plain);
      all.back().offload = offload;
    }
  }
  return all;
}

OptionValues options_of(const Strategy& strategy, const OptionValues& asked) {
  OptionValues own;
  for (const Option& option : strategy.options) {
    if (const auto found = asked.find(option.name); found != asked.end()) {
      own.insert(*found);
    }
  }
  return own;
}

std::vector<OptionValues> option_sets(
    const Strategy& strategy,
    const OptionValues& asked,
    const Task& group,
    const std::function<bool(const Option& option)>& tried) {
  std::vector<OptionValues> sets = {asked};
  for (const Option& option : strategy.options) {
    if (option.candidates == nullptr || asked.contains(option.name) || !tried(option)) {
      continue;
    }
    for (std::size_t i = 0, known = sets.size(); i < known; ++i) {
      for (const std::int64_t value : option.candidates(group)) {
        sets.push_back(sets[i]);
        sets.back()[option.name] = value;
      }
    }
  }
  return sets;
}

}  // namespace paradyse
