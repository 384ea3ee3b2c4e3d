#include "paradyse/plan/strategy.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "paradyse/plan/detail/op_traits.h"
#include "src/plan/base/text_match.h"
#include "src/plan/model/families.h"
#include "src/plan/strategy/mlp_names.h"
#include "src/plan/strategy/table.h"

namespace paradyse {
namespace {

[[noreturn]] void unknown(
    const std::string& what,
    const std::string& name,
    const std::vector<std::string>& known,
    const std::string& hint = "") {
  throw std::invalid_argument(
      "unknown " + what + " '" + name + "'" + did_you_mean(name, known) +
      "; known: " + joined(known, ", ") + hint);
}

// How plan files write the weight modes that options and run files name.
std::string weight_modes_hint() {
  const auto both = [](const Renamed& mode) {
    return fmt::format("{} for {}", mode.old, mode.now);
  };
  return "; plan files write " + joined(weight_modes(), ", ", both);
}

// Rows of a kind stand together in the table.
std::span<const Strategy> rows_of(const std::string& kind) {
  const std::vector<Strategy>& all = strategy_table();
  const auto is = [&](const Strategy& s) { return s.kind == kind; };
  const auto first = std::find_if(all.begin(), all.end(), is);
  return {first, std::find_if_not(first, all.end(), is)};
}

const Strategy* find(std::span<const Strategy> rows, const std::string& name) {
  const auto found = std::ranges::find(rows, name, &Strategy::name);
  return found == rows.end() ? nullptr : &*found;
}

}  // namespace

std::span<const Strategy> strategies(const std::string& kind) { return rows_of(kind); }

namespace {

// Of all families.
std::set<std::string> kinds_of_layers() {
  std::set<std::string> kinds(layer_parts().begin(), layer_parts().end());  // of text
  for (const ModelFamily& family : model_families()) {
    for (const Model& model : family.variants) {
      for (const ModelPart& part : model.parts) {
        if (part.layer >= 0) {
          kinds.insert(part.part->kind);
        }
      }
    }
  }
  return kinds;
}

using KindAndName = std::pair<std::string, std::string>;

std::set<KindAndName>& added_strategies() {
  static std::set<KindAndName> added;
  return added;
}

}  // namespace

void add_strategy(Strategy strategy) {
  std::vector<Strategy>& all = strategy_table();
  const std::span<const Strategy> rows = rows_of(strategy.kind);
  if (const std::set<std::string> kinds = kinds_of_layers(); !kinds.contains(strategy.kind)) {
    throw std::invalid_argument(
        "add_strategy: no part of a layer is of the kind '" + strategy.kind + "'; there are " +
        joined(kinds, ", "));
  }
  const auto of_text = [](const std::string& kind) {
    return std::ranges::find(layer_parts(), kind) != layer_parts().end();
  };
  for (const Strategy& other : all) {  // an MLP goes by the names of attention, too
    const bool beside =
        other.kind == strategy.kind || (of_text(other.kind) && of_text(strategy.kind));
    if (beside && other.name == strategy.name) {
      throw std::invalid_argument(
          "add_strategy: '" + strategy.name + "' is taken; take another name");
    }
  }
  if (strategy.build == nullptr) {
    throw std::invalid_argument(
        "add_strategy: '" + strategy.name + "' has no " + strategy.kind + " builder");
  }
  const auto place =
      all.begin() + (rows.data() - all.data()) + static_cast<std::ptrdiff_t>(rows.size());
  added_strategies().emplace(strategy.kind, strategy.name);
  all.insert(place, std::move(strategy));
}

void remove_strategy(const std::string& kind, const std::string& name) {
  if (added_strategies().erase({kind, name}) == 0) {
    throw std::invalid_argument(
        "remove_strategy: '" + name + "' of kind '" + kind + "' was not added by add_strategy()");
  }
  std::erase_if(
      strategy_table(), [&](const Strategy& s) { return s.kind == kind && s.name == name; });
}

const Strategy& strategy(const std::string& kind, const std::string& name) {
  if (const Strategy* found = find(rows_of(kind), name)) {
    return *found;
  }
  std::vector<std::string> names;
  for (const Strategy& s : rows_of(kind)) {
    names.push_back(s.name);
  }
  if (kind == "mlp") {
    for (const Strategy& published : rows_of("attention")) {
      if (published.name == name) {
        return *find(rows_of(kind), to_string(published.verb));
      }
      names.push_back(published.name);
    }
  }
  const bool mlp = kind == "mlp";
  unknown(mlp ? "MLP strategy" : kind + " strategy", name, names, mlp ? weight_modes_hint() : "");
}

bool takes(const std::string& kind, const std::string& name, const std::string& option) {
  return std::ranges::any_of(
      strategy(kind, name).options, [&](const Option& one) { return one.name == option; });
}

std::vector<Option> all_options(const std::vector<std::string>& kinds) {
  std::vector<Option> all;
  for (const std::string& kind : kinds) {
    for (const Strategy& s : rows_of(kind)) {
      for (const Option& option : s.options) {
        const auto known = [&](const Option& o) { return std::string(o.name) == option.name; };
        if (std::none_of(all.begin(), all.end(), known)) {
          all.push_back(option);
        }
      }
    }
  }
  return all;
}

std::string to_string(Verb verb) {
  static const char* const names[] = {"hold", "gather", "pass"};
  return names[static_cast<int>(verb)];
}

std::string to_string(Recompute recompute) {
  static const char* const names[] = {"none", "light", "attention-output", "full"};
  return names[static_cast<int>(recompute)];
}

Recompute recompute(const std::string& name) {
  std::vector<std::string> names;
  for (const Recompute level : kRecomputeLevels) {
    names.push_back(to_string(level));
    if (names.back() == name) {
      return level;
    }
  }
  unknown("recompute level", name, names);
}

namespace {

constexpr const char* kWholeLayer = "layer";

}  // namespace

std::string to_string(LayerRecompute recompute) {
  if (!recompute.layer) {
    return to_string(recompute.parts);
  }
  return recompute.parts == Recompute::none
             ? kWholeLayer
             : std::string(kWholeLayer) + "+" + to_string(recompute.parts);
}

std::vector<std::string> recompute_names() {
  std::vector<std::string> names;
  for (const bool layer : {false, true}) {
    for (const Recompute level : kRecomputeLevels) {
      names.push_back(to_string(LayerRecompute{.parts = level, .layer = layer}));
    }
  }
  return names;
}

LayerRecompute layer_recompute(const std::string& name) {
  for (const bool layer : {false, true}) {
    for (const Recompute level : kRecomputeLevels) {
      const LayerRecompute found{.parts = level, .layer = layer};
      if (to_string(found) == name) {
        return found;
      }
    }
  }
  unknown("recompute level", name, recompute_names());
}

void set_recompute(LayerChoice& layer, LayerRecompute recompute) {
  for (PartChoice& part : layer) {
    part.recompute = recompute.parts;
    part.with_layer = recompute.layer;
  }
}

bool made_again_whole(const LayerChoice& layer) {
  return !layer.empty() && std::ranges::all_of(layer, &PartChoice::with_layer);
}

void apply(Recompute level, Program& program) {
  std::set<ValueId> light;  // what light ops make, or ops in the memory of that
  for (Op& op : program.ops) {
    switch (level) {
      case Recompute::none:
        break;
      case Recompute::light:
        if (traits(op.kind).light || (op.in_place && light.contains(op.in.back()))) {
          op.recompute = true;
          light.insert(op.out.begin(), op.out.end());
        }
        break;
      case Recompute::attention_output:
        op.recompute |= !traits(op.kind).core;
        break;
      case Recompute::full:
        op.recompute = true;
        break;
    }
  }
}

}  // namespace paradyse
