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
  std::string list;
  for (const std::string& k : known) {
    list += (list.empty() ? "" : ", ") + k;
  }
  throw std::invalid_argument(
      "unknown " + what + " '" + name + "'" + did_you_mean(name, known) + "; known: " + list);
}

bool light(OpKind kind) {
  return kind == OpKind::norm || kind == OpKind::qk_norm || kind == OpKind::swiglu ||
         kind == OpKind::activation;
}

bool made_by(const Program& program, ValueId value, OpKind kind) {
  const int maker = producer(program, value);
  return maker >= 0 && program.ops[static_cast<std::size_t>(maker)].kind == kind;
}

std::vector<Strategy>& table() {
  static std::vector<Strategy> all = {
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
      {.name = "MegatronCZ",
       .verb = Verb::gather,
       .attention = megatron_cz_attention,
       .summary = "keys and values go round a ring; weights are gathered"},
      {.name = "ColossalZ",
       .verb = Verb::gather,
       .attention = colossal_z_attention,
       .summary = "ring self-attention with full rows of scores (quadratic memory)"},
      {.name = "METP",
       .verb = Verb::pass,
       .attention = metp_attention,
       .summary = "head groups in turn, a ring for each; weights pass by"},
      {.name = "USP",
       .verb = Verb::gather,
       .attention = usp_attention,
       .summary = "a grid of UlyssesZ and MegatronCZ; weights are gathered"},
      {.name = "AllGatherKV",
       .verb = Verb::gather,
       .attention = all_gather_kv_attention,
       .summary = "keys and values are gathered for own queries; so are weights"},
  };
  return all;
}

}  // namespace

std::span<const Strategy> strategies() { return table(); }

void add_strategy(Strategy strategy) {
  for (const Strategy& s : table()) {
    if (s.name == strategy.name) {
      throw std::invalid_argument("add_strategy: '" + s.name + "' is taken; take another name");
    }
  }
  if (strategy.attention == nullptr) {
    throw std::invalid_argument("add_strategy: '" + strategy.name + "' has no attention builder");
  }
  table().push_back(std::move(strategy));
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
  std::vector<std::string> names;
  for (const Verb verb : kVerbs) {
    names.push_back(to_string(verb));
    if (names.back() == name) {
      return verb;
    }
  }
  for (const Strategy& s : strategies()) {
    if (s.name == name) {
      return s.verb;
    }
    names.push_back(s.name);
  }
  unknown("MLP strategy", name, names);
}

std::span<const LayerOption> layer_options() {
  static constexpr LayerOption kOptions[] = {
      {"head_groups",
       &LayerChoice::head_groups,
       "METP",
       "METP: pieces in which heads pass by (default: as many as ranks or key heads)"},
      {"ulysses_degree",
       &LayerChoice::ulysses_degree,
       "USP",
       "USP: ranks that trade tokens for heads (default: as square a grid as the ranks allow)"},
      {"token_tiles",
       &LayerChoice::token_tiles,
       nullptr,
       "MLPs: tiles of a rank's tokens, taken one after the other (default: all at once)"},
  };
  return kOptions;
}

void check_options(const LayerChoice& choice, int ranks, std::int64_t kv_heads) {
  const auto refuse = [](const LayerOption& option, int value, const std::string& why) {
    throw std::invalid_argument(
        std::string(option.name) + " " + std::to_string(value) + ": " + why);
  };
  for (const LayerOption& option : layer_options()) {
    const int value = choice.*option.value;
    if (value == 0) {
      continue;
    }
    if (value < 0) {
      refuse(option, value, "at least 1 is needed");
    }
    if (option.strategy != nullptr && choice.attention != option.strategy) {
      refuse(option, value, std::string(option.strategy) + " has it, not " + choice.attention);
    }
  }
  if (choice.head_groups > kv_heads) {
    refuse(
        layer_options()[0],
        choice.head_groups,
        "there are at most as many groups as the model has key/value heads, " +
            std::to_string(kv_heads));
  }
  if (choice.ulysses_degree > 0 && ranks % choice.ulysses_degree != 0) {
    refuse(
        layer_options()[1],
        choice.ulysses_degree,
        "the ranks of a group, here " + std::to_string(ranks) + ", must be a multiple of it");
  }
}

std::string to_string(Verb verb) {
  static const char* const names[] = {"hold", "gather", "pass"};
  return names[static_cast<int>(verb)];
}

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
        // rope works in the memory of the norm that it follows
        op.recompute |= light(op.kind) ||
                        (op.kind == OpKind::rope && made_by(program, op.in[0], OpKind::qk_norm));
        break;
      case Recompute::attention_output:
        op.recompute |= !is_attention(op.kind);
        break;
      case Recompute::full:
        op.recompute = true;
        break;
    }
  }
}

Timeline timeline(const Task& task, std::span<const LayerChoice> layers, bool keep) {
  Task run = task;
  run.dropout = keep;
  const int p = task.tokens.ranks();
  if (static_cast<std::int64_t>(layers.size()) != task.model->layers) {
    throw std::invalid_argument(
        "a plan for " + std::to_string(layers.size()) + " layers does not fit a model of " +
        std::to_string(task.model->layers));
  }
  const auto check_verb = [&](Verb verb, const std::string& part) {
    if (verb != Verb::gather && p != task.domain) {
      throw std::invalid_argument(
          part + ": weights can be " + (verb == Verb::hold ? "held" : "passed") +
          " only by a group that is the whole weight domain; this group "
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

  add(-1, "embedding", Recompute::none, false, [&] { return embedding_program(run); });
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const LayerChoice& choice = layers[l];
    const Strategy& attention = strategy(choice.attention);
    if (attention.one_rank && p > 1) {
      throw std::invalid_argument(
          attention.name + " runs on groups of one rank; this group has " + std::to_string(p));
    }
    check_verb(attention.verb, "attention");
    const Verb mlp = verb(choice.mlp);
    check_verb(mlp, "mlp");
    const auto layer = static_cast<std::int64_t>(l);
    Task with_options = run;
    with_options.head_groups = choice.head_groups;
    with_options.ulysses_degree = choice.ulysses_degree;
    with_options.token_tiles = choice.token_tiles;
    check_options(choice, p, task.model->kv_heads);
    std::string options;
    for (const LayerOption& option : layer_options()) {
      options += " " + std::to_string(choice.*option.value);
    }
    add(layer,
        "attention " + attention.name + options,
        choice.attention_recompute,
        choice.attention_offload,
        [&] { return attention.attention(with_options); });
    add(layer, "mlp " + to_string(mlp) + options, choice.mlp_recompute, choice.mlp_offload, [&] {
      return mlp_program(with_options, mlp);
    });
  }
  if (task.model->masked_lm) {
    add(-1, "transform", Recompute::none, false, [&] { return transform_program(run); });
  }
  add(-1, "head", Recompute::none, false, [&] { return head_program(run, keep); });
  return parts;
}

}  // namespace paradyse
