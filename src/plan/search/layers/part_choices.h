// Which choices of a part planners look at, whatever the model: its strategy's options, what is
// recomputed, and what waits in host memory.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "paradyse/plan/detail/planning_task.h"
#include "paradyse/plan/strategy.h"

namespace paradyse {

// What a plan may recompute and offload, by what the task asks for; where it asks for nothing, all
// that there is.
struct SavingChoices {
  std::vector<Recompute> levels;        // of the parts of a layer
  bool part_by_part = true;             // layers whose parts are recomputed one by one
  bool whole = true;                    // layers that are recomputed as a whole
  std::vector<bool> offload = {false};  // what waits for the backward pass
};
SavingChoices saving_choices(const PlanningTask& task);

// The choice with each of these, but for those that are the same as another; layers are not
// recomputed as a whole.
std::vector<PartChoice> with_savings(PartChoice choice, const SavingChoices& savings);

// Values of a strategy's options, by name; absent: its default.
using OptionValues = std::map<std::string, std::int64_t>;
// Of those that are asked for, what this strategy takes.
OptionValues options_of(const Strategy& strategy, const OptionValues& asked);
// `asked`, and beside it every mixture of what the strategy says is worth a try of options that
// `tried` allows and nobody asked for.
std::vector<OptionValues> option_sets(
    const Strategy& strategy,
    const OptionValues& asked,
    const Task& group,
    const std::function<bool(const Option& option)>& tried);

}  // namespace paradyse
