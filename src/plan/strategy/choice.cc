// What a layer runs, as plans say it: names, options, what does not suit.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "src/plan/strategy/table.h"

namespace paradyse {
namespace {

const Option* find_option(const Strategy& strategy, const std::string& name) {
  const auto found = std::ranges::find_if(
      strategy.options, [&](const Option& option) { return name == option.name; });
  return found == strategy.options.end() ? nullptr : &*found;
}

// Of a strategy that is known.
bool may_take(const PartChoice& part, const std::string& option) {
  for (const Strategy& one : strategies(kind_of(part.part))) {
    if (one.name == canonical(part).strategy) {
      return find_option(one, option) != nullptr;
    }
  }
  return false;
}

Misfit misfit_of(
    const PartChoice& choice,
    const std::string& option,
    std::int64_t value,
    const std::string& why) {
  return {
      .option = option,
      .why = option + " " + std::to_string(value) + " of '" + choice.strategy + "': " + why};
}

}  // namespace

std::string strategies_with(const std::string& kind, const std::string& option) {
  std::string text;
  for (const Strategy& s : strategies(kind)) {
    if (find_option(s, option) != nullptr) {
      text += (text.empty() ? "" : ", ") + s.name;
    }
  }
  return text;
}

std::int64_t Task::option(const std::string& name, std::int64_t otherwise) const {
  const auto found = choice.options.find(name);
  return found == choice.options.end() ? otherwise : found->second;
}

LayerChoice text_layer(
    const std::string& attention,
    const std::string& mlp,
    Recompute attention_recompute,
    Recompute mlp_recompute) {
  return {
      {.part = "attention", .strategy = attention, .recompute = attention_recompute},
      {.part = "mlp",
       .strategy = mlp.empty() ? to_string(strategy("attention", attention).verb) : mlp,
       .recompute = mlp_recompute}};
}

const PartChoice& part_of(const LayerChoice& layer, const std::string& part) {
  const auto found = std::ranges::find(layer, part, &PartChoice::part);
  if (found == layer.end()) {
    throw std::invalid_argument("a layer says nothing of its part '" + part + "'");
  }
  return *found;
}

PartChoice& part_of(LayerChoice& layer, const std::string& part) {
  return const_cast<PartChoice&>(part_of(std::as_const(layer), part));
}

void set_options(LayerChoice& layer, const std::map<std::string, std::int64_t>& options) {
  for (const auto& [name, value] : options) {
    PartChoice* of_kind = nullptr;
    bool taken = false;
    for (PartChoice& choice : layer) {
      if (find_option(strategy(kind_of(choice.part), choice.strategy), name) != nullptr) {
        choice.options[name] = value;
        taken = true;
      } else if (of_kind == nullptr && !strategies_with(kind_of(choice.part), name).empty()) {
        of_kind = &choice;
      }
    }
    if (!taken && of_kind == nullptr) {
      throw std::invalid_argument("no part of a layer has an option '" + name + "'");
    }
    if (!taken) {
      of_kind->options[name] = value;
    }
  }
}

PartChoice canonical(PartChoice choice) {
  if (kind_of(choice.part) == "mlp") {
    for (const Strategy& published : strategies("attention")) {
      if (published.name == choice.strategy) {
        choice.strategy = to_string(published.verb);
      }
    }
    if (choice.recompute == Recompute::attention_output) {
      choice.recompute = Recompute::full;
    }
  }
  return choice;
}

std::string name(const LayerChoice& layer) {
  std::string strategies;
  std::string levels;
  std::string offloaded;
  bool alike = true;
  bool all_offloaded = true;
  const bool whole = made_again_whole(layer);
  for (const PartChoice& part : layer) {
    const std::string join = strategies.empty() ? "" : "+";
    strategies += join + canonical(part).strategy;
    levels += (levels.empty() ? "" : " and ") + to_string(part.recompute);
    // the same, of a part without attention
    PartChoice first{.part = part.part, .strategy = {}, .recompute = layer.front().recompute};
    alike &= canonical(first).recompute == canonical(part).recompute;
    all_offloaded &= part.offload;
    if (part.offload) {
      offloaded += (offloaded.empty() ? "" : " and ") + part.part;
    }
  }
  std::string text = strategies;
  if (!alike) {
    text += ", recompute " + std::string(whole ? "layer+" : "") + levels;
  } else if (whole || (!layer.empty() && layer.front().recompute != Recompute::none)) {
    text += ", recompute " +
            to_string(LayerRecompute{.parts = layer.front().recompute, .layer = whole});
  }
  if (!offloaded.empty()) {
    text += ", offload " + (!all_offloaded ? offloaded : layer.size() == 2 ? "both" : "all");
  }
  for (const PartChoice& part : layer) {
    for (const auto& [option, value] : part.options) {
      // said once of all parts that have the option; of some of them, or others, by part
      const bool together = std::ranges::all_of(layer, [&](const PartChoice& other) {
        const auto found = other.options.find(option);
        return found != other.options.end() ? found->second == value : !may_take(other, option);
      });
      const auto first = std::ranges::find_if(
          layer, [&](const PartChoice& other) { return other.options.contains(option); });
      if (together && &*first != &part) {
        continue;
      }
      text.append(", ").append(together ? "" : part.part + " ");
      text.append(option).append(" ").append(std::to_string(value));
    }
    for (const auto& [stream, placement] : part.in) {
      text.append(", ").append(part.part).append(" takes ").append(stream).append(" at ");
      text.append(to_string(placement));
    }
  }
  return text;
}

std::vector<Misfit> misfits(const Task& task, const PartChoice& choice) {
  const std::string& kind = task.part == nullptr ? kind_of(choice.part) : task.part->kind;
  const Strategy& runs = strategy(kind, choice.strategy);
  const int p = task.documents.ranks();
  std::vector<Misfit> found;
  if (runs.one_rank && p > 1) {
    found.push_back(
        {.option = {},
         .why = "runs on groups of one rank; this one has " + std::to_string(p) +
                ": use another or split it"});
  }
  if (runs.verb == Verb::pass && p != task.domain) {
    found.push_back(
        {.option = {},
         .why = "streams weights, which needs a group that is the whole sharding group "
                "(weight_domain) of " +
                std::to_string(task.domain) + " ranks; this one has " + std::to_string(p) +
                ": use a strategy that gathers"});
  }
  if (runs.verb == Verb::hold && task.domain > 1 && task.domain % std::max(1, p) != 0) {
    found.push_back(
        {.option = {},
         .why =
             "is tensor parallel, which needs groups of one size that make up the sharding group "
             "(weight_domain) of " +
             std::to_string(task.domain) + " ranks; this one has " + std::to_string(p) +
             ": use a strategy that gathers"});
  }
  for (const auto& [key, value] : choice.options) {
    const auto refuse = [&, name = key, number = value](const std::string& why) {
      found.push_back(misfit_of(choice, name, number, why));
    };
    const Option* option = find_option(runs, key);
    if (option == nullptr) {
      const std::string has = strategies_with(kind, key);
      refuse(has.empty() ? "no strategy has it" : has + " has it, not " + choice.strategy);
    } else if (value < 1) {
      refuse("at least 1 is needed");
    } else if (option->why_not != nullptr) {
      if (const std::string why = option->why_not(value, task); !why.empty()) {
        refuse(why);
      }
    }
  }
  return found;
}

}  // namespace paradyse
