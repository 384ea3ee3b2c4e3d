#include "paradyse/plan/layer_costs.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace paradyse {
namespace {

// Rungs of the ladder: a quarter of a doubling apart.
constexpr double kRungsPerDoubling = 4;

std::int64_t rung(int i) {
  return static_cast<std::int64_t>(std::llround(std::exp2(i / kRungsPerDoubling)));
}

// The strategies that a group of `ranks` may choose from: on one rank all compute alike, so whole
// documents need no second name.
bool suits(const Strategy& s, const PlanningTask& task, int ranks) {
  if (!task.attention.empty() && s.name != task.attention) {
    return false;
  }
  if (std::find(task.without.begin(), task.without.end(), s.name) != task.without.end()) {
    return false;
  }
  const bool named = !task.attention.empty();
  return ranks > 1 ? !s.one_rank : s.one_rank || (ranks == task.ranks && named);
}

// Of an MLP, recomputing all but the attention's output is recomputing all.
Recompute of_mlp(Recompute level) {
  return level == Recompute::attention_output ? Recompute::full : level;
}

// a is nowhere worse.
bool beats(const PartCost& a, const PartCost& b) {
  return a.wall <= b.wall && a.saved_bytes <= b.saved_bytes &&
         a.transient_bytes <= b.transient_bytes;
}

}  // namespace

PartCost operator+(const PartCost& attention, const PartCost& mlp) {
  return {
      .wall = attention.wall + mlp.wall,
      .busy = attention.busy + mlp.busy,
      .saved_bytes = attention.saved_bytes + mlp.saved_bytes,
      .transient_bytes =
          std::max(attention.transient_bytes - mlp.saved_bytes, mlp.transient_bytes)};
}

LayerCosts::LayerCosts(const PlanningTask& task, int ranks, const Correction& correction)
    : task_(task),
      correction_(correction),
      ranks_(ranks),
      model_(task.seconds ? task.seconds : closed_form(task.machine)) {
  std::vector<Recompute> levels(std::begin(kRecomputeLevels), std::end(kRecomputeLevels));
  if (!task.training) {
    levels = {Recompute::none};  // nothing is saved, so nothing is made again
  } else if (!task.recompute.empty()) {
    levels = {recompute(task.recompute)};
  }
  std::vector<Verb> verbs(std::begin(kVerbs), std::end(kVerbs));
  if (!task.mlp.empty()) {
    verbs = {verb(task.mlp)};
  }
  if (ranks < task.ranks) {  // a group that is not the whole weight domain gathers
    std::erase_if(verbs, [](Verb v) { return v != Verb::gather; });
  }
  if (verbs.empty()) {
    return;
  }
  const int places = task.offload && task.training ? 2 : 1;
  for (const Strategy& s : strategies()) {
    if (!suits(s, task, ranks)) {
      continue;
    }
    for (const Recompute level : levels) {
      for (int host = 0; host < places; ++host) {
        ways_.push_back(
            {.attention = true,
             .choice = {
                 .attention = s.name,
                 .attention_recompute = level,
                 .attention_offload = host == 1}});
      }
      for (const Verb v : verbs) {
        uniform_.push_back(
            {.attention = s.name,
             .mlp = to_string(v),
             .attention_recompute = level,
             .mlp_recompute = of_mlp(level)});
      }
    }
  }
  for (const Verb v : verbs) {
    for (const Recompute level : levels) {
      if (level == Recompute::attention_output && levels.size() > 1) {
        continue;  // of an MLP it is the same as full
      }
      for (int host = 0; host < places; ++host) {
        ways_.push_back(
            {.attention = false,
             .choice = {
                 .mlp = to_string(v), .mlp_recompute = of_mlp(level), .mlp_offload = host == 1}});
      }
    }
  }
}

PartCost LayerCosts::fold(std::size_t way, std::int64_t length) const {
  const bool whole = way == ways_.size();  // the rest of the model: one with no layers
  ModelShape model = task_.model;
  if (whole) {
    model.layers = 0;
  }
  const Task task{
      .model = &model,
      .tokens = token_layout({length}, ranks_, model.causal),
      .domain = task_.ranks};
  Timeline parts;
  PartQuestion question{.ranks = ranks_, .length = length};
  if (whole) {
    parts = timeline(task, {}, task_.training);
    question.part = "rest";
  } else if (const LayerChoice& choice = ways_[way].choice; ways_[way].attention) {
    parts = {attention_part(task, choice, task_.training)};
    question.part = "attention";
    question.strategy = choice.attention;
    question.recompute = choice.attention_recompute;
  } else {
    parts = {mlp_part(task, choice, task_.training)};
    question.part = "mlp";
    question.strategy = choice.mlp;
    question.recompute = choice.mlp_recompute;
  }

  PartCost cost;
  std::vector<PartWork> of_ranks;
  for (int r = 0; r < task_.ranks; ++r) {  // groups of one rank: all of them, side by side
    const Seat seat{.group_rank = ranks_ == 1 ? 0 : r, .domain_rank = r};
    PartWork& mine = of_ranks.emplace_back();
    for (const ScheduledPart& part : parts) {
      mine += part_work(part, seat, task_.precision);
    }
    if (whole) {
      const Footprint held = footprint(parts, seat, task_.precision, 0);
      cost.saved_bytes = std::max(cost.saved_bytes, held.saved_bytes);
      cost.transient_bytes = std::max(cost.transient_bytes, held.peak_bytes - held.saved_bytes);
    } else {
      const PartFootprint held = part_footprint(parts.front(), seat, task_.precision);
      cost.saved_bytes = std::max(cost.saved_bytes, held.saved_bytes);
      cost.transient_bytes = std::max(cost.transient_bytes, held.transient_bytes);
    }
  }
  question.work = together(of_ranks, task_.machine.cores);
  cost.wall = model_->seconds(question).total();
  const double sharing =
      std::max(1.0, static_cast<double>(task_.ranks) / static_cast<double>(task_.machine.cores));
  cost.busy = cost.wall / sharing;
  return cost;
}

PartCost LayerCosts::at(std::size_t way, std::int64_t length) {
  const auto found = folded_.find({way, length});
  return found != folded_.end()
             ? found->second
             : folded_.emplace(std::pair(way, length), fold(way, length)).first->second;
}

PartCost LayerCosts::read_off(std::size_t way, std::int64_t length) {
  int i = static_cast<int>(std::floor(
      std::log2(static_cast<double>(std::max<std::int64_t>(length, 1))) * kRungsPerDoubling));
  while (rung(i) > length && i > 0) {
    --i;
  }
  const std::int64_t low = rung(i);
  std::int64_t high = low;
  while (high <= low) {
    high = rung(++i);
  }
  const PartCost a = at(way, low);
  if (low == length) {
    return a;
  }
  const PartCost b = at(way, high);
  const double share = static_cast<double>(length - low) / static_cast<double>(high - low);
  const auto between = [&](auto x, auto y) {
    return static_cast<decltype(x)>(
        static_cast<double>(x) + share * (static_cast<double>(y) - static_cast<double>(x)));
  };
  return {
      .wall = between(a.wall, b.wall),
      .busy = between(a.busy, b.busy),
      .saved_bytes = between(a.saved_bytes, b.saved_bytes),
      .transient_bytes = between(a.transient_bytes, b.transient_bytes)};
}

LayerCosts::Ways LayerCosts::ways(std::int64_t length) {
  // Parts apart first: a part that another beats is in no way that counts.
  std::vector<std::pair<std::size_t, PartCost>> kept[2];  // [attention]
  for (std::size_t w = 0; w < ways_.size(); ++w) {
    const PartCost cost = read_off(w, length);
    auto& rivals = kept[ways_[w].attention ? 1 : 0];
    const auto beaten = [&](const auto& rival) { return beats(rival.second, cost); };
    if (std::none_of(rivals.begin(), rivals.end(), beaten)) {
      std::erase_if(rivals, [&](const auto& rival) { return beats(cost, rival.second); });
      rivals.emplace_back(w, cost);
    }
  }
  Ways result;
  for (const auto& [a, attention] : kept[1]) {
    for (const auto& [m, mlp] : kept[0]) {
      LayerChoice layer = ways_[a].choice;
      layer.mlp = ways_[m].choice.mlp;
      layer.mlp_recompute = ways_[m].choice.mlp_recompute;
      layer.mlp_offload = ways_[m].choice.mlp_offload;
      const PartCost cost = corrected(attention + mlp, layer.attention, length);
      result.costs.push_back(
          {.name = name(layer),
           .seconds = cost.wall,
           .saved_bytes = cost.saved_bytes,
           .transient_bytes = std::max<std::int64_t>(0, cost.transient_bytes)});
      result.layers.push_back(layer);
      result.busy.push_back(cost.busy);
    }
  }
  return result;
}

PartCost LayerCosts::layer(const LayerChoice& choice, std::int64_t length) {
  PartCost found[2];
  bool there[2] = {false, false};
  for (std::size_t w = 0; w < ways_.size(); ++w) {
    const LayerChoice& way = ways_[w].choice;
    const bool attention = ways_[w].attention;
    const bool same = attention ? way.attention == choice.attention &&
                                      way.attention_recompute == choice.attention_recompute &&
                                      way.attention_offload == choice.attention_offload
                                : way.mlp == choice.mlp &&
                                      way.mlp_recompute == of_mlp(choice.mlp_recompute) &&
                                      way.mlp_offload == choice.mlp_offload;
    if (same) {
      found[attention ? 1 : 0] = read_off(w, length);
      there[attention ? 1 : 0] = true;
    }
  }
  if (!there[0] || !there[1]) {
    throw std::invalid_argument("layer costs: '" + name(choice) + "' is not among the ways");
  }
  return corrected(found[1] + found[0], choice.attention, length);
}

PartCost LayerCosts::corrected(
    PartCost cost, const std::string& attention, std::int64_t length) const {
  const double factor = correction_.factor(attention, length);
  cost.wall *= factor;
  cost.busy *= factor;
  return cost;
}

PartCost LayerCosts::rest(std::int64_t length) { return read_off(ways_.size(), length); }

}  // namespace paradyse
