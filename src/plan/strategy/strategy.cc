#include "paradyse/plan/strategy.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "src/plan/base/text_match.h"
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

std::string name(const LayerChoice& choice) {
  std::string text = choice.attention + "+" + to_string(verb(choice.mlp));
  const Recompute attention = choice.attention_recompute;
  const Recompute mlp = choice.mlp_recompute;
  const bool alike = attention == mlp || (attention == Recompute::attention_output &&
                                          mlp == Recompute::full);  // the same, of an MLP
  if (!alike) {
    text += ", recompute " + to_string(attention) + " and " + to_string(mlp);
  } else if (attention != Recompute::none) {
    text += ", recompute " + to_string(attention);
  }
  if (choice.attention_offload || choice.mlp_offload) {
    text += ", offload ";
    text += !choice.mlp_offload ? "attention" : !choice.attention_offload ? "mlp" : "both";
  }
  return text;
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

namespace {

using Body = std::shared_ptr<const ScheduledPart::Body>;

Body body(Program program, Recompute level, bool keep, bool offload) {
  apply(level, program);
  Schedule order = schedule(program, keep, keep && offload);
  return std::make_shared<ScheduledPart::Body>(
      ScheduledPart::Body{.program = std::move(program), .schedule = std::move(order)});
}

Task with_options(const Task& task, const LayerChoice& choice, bool keep) {
  Task run = task;
  run.dropout = keep;
  run.head_groups = choice.head_groups;
  run.ulysses_degree = choice.ulysses_degree;
  run.token_tiles = choice.token_tiles;
  return run;
}

void expect_fitting(Verb verb, const std::string& part, const Task& task) {
  const int p = task.tokens.ranks();
  if (verb != Verb::gather && p != task.domain) {
    throw std::invalid_argument(
        part + ": weights can be " + (verb == Verb::hold ? "held" : "passed") +
        " only by a group that is the whole weight domain; this group "
        "has " +
        std::to_string(p) + " ranks of " + std::to_string(task.domain) +
        ": use a strategy that gathers");
  }
}

}  // namespace

ScheduledPart attention_part(const Task& task, const LayerChoice& choice, bool keep) {
  const Strategy& attention = strategy(choice.attention);
  const int p = task.tokens.ranks();
  if (attention.one_rank && p > 1) {
    throw std::invalid_argument(
        attention.name + " runs on groups of one rank; this group has " + std::to_string(p));
  }
  expect_fitting(attention.verb, "attention", task);
  check_options(choice, p, task.model->kv_heads);
  return {
      .layer = 0,
      .body = body(
          attention.attention(with_options(task, choice, keep)),
          choice.attention_recompute,
          keep,
          choice.attention_offload)};
}

ScheduledPart mlp_part(const Task& task, const LayerChoice& choice, bool keep) {
  const Verb mlp = verb(choice.mlp);
  expect_fitting(mlp, "mlp", task);
  check_options(choice, task.tokens.ranks(), task.model->kv_heads);
  return {
      .layer = 0,
      .body = body(
          mlp_program(with_options(task, choice, keep), mlp),
          choice.mlp_recompute,
          keep,
          choice.mlp_offload)};
}

Timeline timeline(const Task& task, std::span<const LayerChoice> layers, bool keep) {
  if (static_cast<std::int64_t>(layers.size()) != task.model->layers) {
    throw std::invalid_argument(
        "a plan for " + std::to_string(layers.size()) + " layers does not fit a model of " +
        std::to_string(task.model->layers));
  }
  Task run = task;
  run.dropout = keep;
  Timeline parts;
  const auto add = [&](Program program) {
    parts.push_back({.layer = -1, .body = body(std::move(program), Recompute::none, keep, false)});
  };
  add(embedding_program(run));
  // Layers are alike: each distinct choice is built once.
  std::vector<std::pair<LayerChoice, std::pair<Body, Body>>> built;
  for (const LayerChoice& choice : layers) {
    auto found = std::find_if(
        built.begin(), built.end(), [&](const auto& one) { return one.first == choice; });
    if (found == built.end()) {
      built.push_back(
          {choice, {attention_part(task, choice, keep).body, mlp_part(task, choice, keep).body}});
      found = std::prev(built.end());
    }
    const auto layer = static_cast<std::int64_t>((parts.size() - 1) / 2);
    parts.push_back({.layer = layer, .body = found->second.first});
    parts.push_back({.layer = layer, .body = found->second.second});
  }
  if (task.model->masked_lm) {
    add(transform_program(run));
  }
  add(head_program(run, keep));
  return parts;
}

}  // namespace paradyse
