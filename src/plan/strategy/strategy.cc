#include "paradyse/strategy.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <tuple>

#include "paradyse/text_match.h"
#include "src/plan/strategy/builders.h"

namespace paradyse {
namespace {

[[noreturn]] void unknown(
    const std::string& what, const std::string& name, const std::vector<std::string>& known) {
  static const std::string later_names[] = {
      "MegatronCZ", "ColossalZ", "METP", "AllGatherKV", "pass"};
  const bool later =
      std::find(std::begin(later_names), std::end(later_names), name) != std::end(later_names);
  std::string list;
  for (const std::string& k : known) {
    list += (list.empty() ? "" : ", ") + k;
  }
  throw std::invalid_argument(
      (later ? what + " '" + name + "' is planned, but not in this version"
             : "unknown " + what + " '" + name + "'" + did_you_mean(name, known)) +
      "; known: " + list);
}

}  // namespace

std::span<const Strategy> strategies() {
  static const std::vector<Strategy> table = {
      {.name = "MegatronTS",
       .verb = Verb::hold,
       .attention = megatron_ts_attention,
       .summary = "own heads over the whole sequence; weights stay where they are"},
      {.name = "UlyssesZ",
       .verb = Verb::gather,
       .attention = ulysses_z_attention,
       .summary = "tokens are exchanged for heads; weights are gathered"},
      {.name = "DataZ",
       .verb = Verb::gather,
       .one_rank = true,
       .attention = data_z_attention,
       .summary = "a rank runs whole documents; weights are gathered"},
  };
  return table;
}

const Strategy& strategy(const std::string& name) {
  std::vector<std::string> names;
  for (const Strategy& s : strategies()) {
    if (s.name == name) {
      return s;
    }
    names.push_back(s.name);
  }
  unknown("attention strategy", name, names);
}

Verb verb(const std::string& name) {
  std::vector<std::string> names = {"hold", "gather"};
  if (name == names[0]) {
    return Verb::hold;
  }
  if (name == names[1]) {
    return Verb::gather;
  }
  for (const Strategy& s : strategies()) {
    if (s.name == name) {
      return s.verb;
    }
    names.push_back(s.name);
  }
  unknown("MLP strategy", name, names);
}

std::string to_string(Verb verb) { return verb == Verb::hold ? "hold" : "gather"; }

std::string to_string(Recompute recompute) {
  switch (recompute) {
    case Recompute::none:
      return "none";
    case Recompute::light:
      return "light";
    case Recompute::attention_output:
      return "attention-output";
    case Recompute::full:
      return "full";
  }
  throw std::logic_error("to_string: unknown Recompute");
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

void apply(Recompute level, Program& program) {
  for (Op& op : program.ops) {
    switch (level) {
      case Recompute::none:
        break;
      case Recompute::light:
        op.recompute |= op.kind == OpKind::norm || op.kind == OpKind::swiglu;
        break;
      case Recompute::attention_output:
        op.recompute |= op.kind != OpKind::attention;
        break;
      case Recompute::full:
        op.recompute = true;
        break;
    }
  }
}

Timeline timeline(const Task& task, std::span<const LayerChoice> layers, bool keep) {
  const int p = task.tokens.ranks();
  if (static_cast<std::int64_t>(layers.size()) != task.model->layers) {
    throw std::invalid_argument(
        "a plan for " + std::to_string(layers.size()) + " layers does not fit a model of " +
        std::to_string(task.model->layers));
  }
  const auto check_hold = [&](Verb verb, const std::string& part) {
    if (verb == Verb::hold && p != task.domain) {
      throw std::invalid_argument(
          part +
          ": weights can be held only by a group that is the whole weight domain; this group "
          "has " +
          std::to_string(p) + " ranks of " + std::to_string(task.domain) +
          ": use a strategy that gathers");
    }
  };
  // Layers are alike: each distinct choice is built once.
  using Body = std::shared_ptr<const ScheduledPart::Body>;
  std::map<std::tuple<std::string, Recompute, bool>, Body> built;
  Timeline parts;
  const auto add =
      [&](std::int64_t layer, const std::string& name, Recompute level, bool offload, auto build) {
        Body& body = built[{name, level, offload}];
        if (body == nullptr) {
          Program program = build();
          apply(level, program);
          Schedule order = schedule(program, keep, keep && offload);
          body = std::make_shared<ScheduledPart::Body>(
              ScheduledPart::Body{.program = std::move(program), .schedule = std::move(order)});
        }
        parts.push_back({.layer = layer, .body = body});
      };

  add(-1, "embedding", Recompute::none, false, [&] { return embedding_program(task); });
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const LayerChoice& choice = layers[l];
    const Strategy& attention = strategy(choice.attention);
    if (attention.one_rank && p > 1) {
      throw std::invalid_argument(
          attention.name + " runs on groups of one rank; this group has " + std::to_string(p));
    }
    check_hold(attention.verb, "attention");
    const Verb mlp = verb(choice.mlp);
    check_hold(mlp, "mlp");
    const auto layer = static_cast<std::int64_t>(l);
    add(layer,
        "attention " + attention.name,
        choice.attention_recompute,
        choice.attention_offload,
        [&] { return attention.attention(task); });
    add(layer, "mlp " + to_string(mlp), choice.mlp_recompute, choice.mlp_offload, [&] {
      return mlp_program(task, mlp);
    });
  }
  add(-1, "head", Recompute::none, false, [&] { return head_program(task, keep); });
  return parts;
}

}  // namespace paradyse
