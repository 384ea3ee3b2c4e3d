#include "lab/flexsp/space_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/plan_path.h"

namespace paradyse {
namespace {

using Problems = std::vector<std::string>;

template <typename Number>
std::string text(Number number) {
  std::ostringstream out;
  out.precision(10);
  out << number;
  return out.str();
}

std::string path_of(std::size_t micro_batch, std::size_t group) {
  return path_to(path_to("micro_batches", micro_batch) + ".groups", group);
}

void for_each_group(
    const Plan& plan, const std::function<void(const std::string&, const PlanGroup&)>& look) {
  for (std::size_t m = 0; m < plan.micro_batches.size(); ++m) {
    for (std::size_t g = 0; g < plan.micro_batches[m].groups.size(); ++g) {
      look(path_of(m, g), plan.micro_batches[m].groups[g]);
    }
  }
}

// --- the space -----------------------------------------------------------------------------------

// "": ranks follow one another.
std::string why_apart(const std::string& path, const PlanGroup& group, const char* space) {
  for (std::size_t i = 1; i < group.ranks.size(); ++i) {
    if (group.ranks[i] - std::int64_t{group.ranks[i - 1]} != 1) {
      return path_to(path + ".ranks", i) + ": rank " + text(group.ranks[i]) + " comes after rank " +
             text(group.ranks[i - 1]) + ": ranks of a group follow one another in the space " +
             space;
    }
  }
  return "";
}

void check_ranks(const std::string& path, const PlanGroup& group, Problems& found) {
  const std::size_t size = group.ranks.size();
  if (size == 0) {
    return;  // problems() says so
  }
  if (!std::has_single_bit(size)) {
    found.push_back(
        path + ".ranks: " + text(size) + " ranks: groups of the space flexsp have 1, 2, 4, 8, ...");
    return;
  }
  if (const std::string why = why_apart(path, group, "flexsp"); !why.empty()) {
    found.push_back(why);
    return;
  }
  if (group.ranks[0] % static_cast<int>(size) != 0) {
    found.push_back(
        path + ".ranks: a group of " + text(size) + " begins at rank " + text(group.ranks[0]) +
        ": in the space flexsp it begins at a multiple of " + text(size));
  }
}

void check_ranks_in_nodes(
    const std::string& path, const PlanGroup& group, int node, Problems& found) {
  const int size = static_cast<int>(group.ranks.size());
  if (size == 0) {
    return;  // problems() says so
  }
  if (node > 0 && size > node && size % node != 0) {
    found.push_back(
        path + ".ranks: " + text(size) + " ranks: groups of the space full have up to " +
        text(node) + ", or whole nodes of so many");
    return;
  }
  if (const std::string why = why_apart(path, group, "full"); !why.empty()) {
    found.push_back(why);
    return;
  }
  if (node == 0) {
    return;
  }
  const int first = group.ranks.front();
  if (size < node && first / node != group.ranks.back() / node) {
    found.push_back(
        path + ".ranks: ranks " + text(first) + " to " + text(group.ranks.back()) +
        " are in two nodes of " + text(node) + ": they fit into one");
  } else if (size >= node && first % node != 0) {
    found.push_back(
        path + ".ranks: a group of " + text(size) + " begins at rank " + text(first) +
        ": whole nodes begin at a multiple of " + text(node));
  }
}

// What a part must be on a group of so many ranks; "": it is.
std::string why_not(const PartChoice& part, std::size_t ranks) {
  const char* wanted = part.part == "mlp" ? "gather" : ranks == 1 ? "DataZ" : "UlyssesZ";
  if (canonical(part).strategy != wanted) {
    return ".strategy: '" + part.strategy + "' on " + text(ranks) +
           (ranks == 1 ? " rank" : " ranks") + ": the space flexsp has " + wanted;
  }
  if (part.recompute != Recompute::none) {
    return ".recompute: '" + to_string(part.recompute) +
           "': the space flexsp recomputes nothing; set 'none', or check against another space";
  }
  if (part.offload || part.with_layer || !part.options.empty() || !part.in.empty()) {
    return ": the space flexsp has no offload, no layers recomputed as a whole, no options and no "
           "placements: leave them out";
  }
  return "";
}

void check_program(
    const Plan& plan, const std::string& path, const PlanGroup& group, Problems& found) {
  const auto program = plan.programs.find(group.program);
  if (program == plan.programs.end()) {
    return;  // problems() says so
  }
  for (std::size_t i = 0; i < program->second.size(); ++i) {
    const LayerChoice& choice = program->second[i].choice;
    for (std::size_t p = 0; p < choice.size(); ++p) {
      const std::string why = why_not(choice[p], group.ranks.size());
      if (!why.empty()) {
        std::string place = path_to(path_to(path_to("programs", group.program), i) + ".parts", p);
        found.push_back(place.append(why).append(" (").append(path).append(")"));
        return;
      }
    }
  }
}

// --- the space full ------------------------------------------------------------------------------

// How a group runs, of the space full.
struct Way {
  std::string core;
  Recompute level = Recompute::none;
};

// Nothing: its layers are not alike, or of no part that the space has; `why` says so, with its
// place in the program.
std::optional<Way> way_of(
    const LayerRuns& program, std::size_t ranks, const FullSpace& space, std::string& why) {
  Way way;
  for (std::size_t i = 0; i < program.size(); ++i) {
    for (std::size_t p = 0; p < program[i].choice.size(); ++p) {
      const PartChoice part = canonical(program[i].choice[p]);
      const std::string place = path_to("[" + text(i) + "].parts", p);
      const bool attention = part.part == "attention";
      if (attention && way.core.empty()) {
        way = {.core = part.strategy, .level = part.recompute};
      }
      const bool known =
          attention ? (ranks == 1 ? part.strategy == "DataZ"
                                  : part.strategy == "UlyssesZ" || part.strategy == "MegatronCZ" ||
                                        (part.strategy == "USP" && ranks > idx(space.node)))
                    : part.strategy == "gather";
      if (!known) {
        why = place + ".strategy: '" + part.strategy + "' on " + text(ranks) +
              (ranks == 1 ? " rank" : " ranks") +
              ": the space full has DataZ on one rank, UlyssesZ and MegatronCZ on more, USP beyond "
              "a node, and MLPs with 'gather'";
        return std::nullopt;
      }
      const Recompute of_mlp =
          way.level == Recompute::attention_output ? Recompute::full : way.level;
      if ((part.recompute == Recompute::light && !space.light) ||
          part.recompute != (attention ? way.level : of_mlp) ||
          (attention && part.strategy != way.core)) {
        why = place + ".recompute: '" + to_string(part.recompute) + "' of " + part.strategy +
              ": all layers of the space full are identical and recompute nothing, " +
              (space.light ? "light ops, " : "") +
              "everything or all but the attention output (with the MLP in full)";
        return std::nullopt;
      }
      const bool usp = part.strategy == "USP";
      const auto degree = part.options.find("ulysses_degree");
      const bool has_degree = degree != part.options.end();
      const bool of_a_node =
          has_degree && (space.node == 0 || degree->second == std::int64_t{space.node});
      if (part.offload || part.with_layer || !part.in.empty() ||
          part.options.size() != (usp ? 1U : 0U) || (usp && !of_a_node)) {
        why = place +
              ": the space full has no offload, no layers recomputed as a whole, no placements and "
              "no option but a ulysses_degree of " +
              (space.node == 0 ? "a node's ranks" : text(space.node)) + " of USP";
        return std::nullopt;
      }
    }
  }
  if (way.core.empty()) {
    why = ": no attention in it";
    return std::nullopt;
  }
  return way;
}

// --- a preset ------------------------------------------------------------------------------------

// The published formulas once more, written as they stand there (docs: the head of presets.h), so
// that a planner's sums and tables are not their own judge.
class Formula {
 public:
  explicit Formula(const FlexspSetting& setting)
      : model_(*setting.model), ranks_(setting.ranks), memory_mb_(setting.memory_mb) {
    const double x = static_cast<double>(setting.context) / 1000;
    parameters_ = model_.parameters_192k +
                  (model_.parameters_384k - model_.parameters_192k) * (x - 192) / 192;
  }

  [[nodiscard]] std::int64_t capacity(std::size_t d) const {
    const double states_mb = 16 * 1024 * parameters_ / ranks_;
    const double tokens = std::floor((memory_mb_ - states_mb) / model_.activation_mb);
    return tokens < 0 ? 0 : static_cast<std::int64_t>(d) * static_cast<std::int64_t>(tokens);
  }
  // Of a document of s tokens in a group of d ranks.
  [[nodiscard]] double seconds(std::int64_t tokens, std::size_t d) const {
    const auto s = static_cast<double>(tokens);
    const double compute_ms = model_.a1_ms * s * s + model_.a2_ms * s;
    const double moved_mb =
        4 * 2 * 2 * static_cast<double>(model_.layers) * model_.hidden * s / (1024.0 * 1024.0);
    const double exchange_ms = d == 1 ? 0 : moved_mb / flexsp_all_to_all(static_cast<int>(d));
    return (compute_ms + exchange_ms) / static_cast<double>(d) / 1000;
  }
  [[nodiscard]] double micro_batch_seconds() const { return model_.b1_ms / 1000; }

 private:
  const FlexspModel& model_;
  int ranks_;
  double memory_mb_;
  double parameters_ = 0;
};

// The formulas of the space full, from the head of FlexspFull and nothing else.
class FullFormula {
 public:
  FullFormula(const FlexspSetting& setting, const FlexspFull& options)
      : model_(*setting.model), options_(options), ranks_(setting.ranks) {
    domain_ = options.node_domain ? std::min(kFlexspNode, ranks_) : ranks_;
    const double x = static_cast<double>(setting.context) / 1000;
    parameters_ = (model_.parameters_192k +
                   (model_.parameters_384k - model_.parameters_192k) * (x - 192) / 192) *
                  std::pow(2.0, 30);
    memory_mb_ = setting.memory_mb - 16 * parameters_ / std::pow(2.0, 20) / domain_;
  }

  [[nodiscard]] std::int64_t capacity(const Way& way, std::size_t d) const {
    double token_mb = model_.activation_mb;
    if (way.level == Recompute::attention_output) {
      token_mb *= 1.3 / 4.4804;
    } else if (way.level == Recompute::full) {
      token_mb *= 1.0 / 4.4804;
    }
    const double tokens = std::floor(memory_mb_ / token_mb);
    return tokens < 0 ? 0 : static_cast<std::int64_t>(d) * static_cast<std::int64_t>(tokens);
  }

  // Of a document in a group of d ranks.
  [[nodiscard]] double seconds(const Way& way, std::int64_t tokens, std::size_t d) const {
    const auto s = static_cast<double>(tokens);
    const auto ranks = static_cast<double>(d);
    const bool output = way.level == Recompute::attention_output;
    const bool full = way.level == Recompute::full;
    const double attention = model_.a1_ms * s * s * (full ? 1.33 : 1) / ranks;
    const double rest = model_.a2_ms * s * (full ? 1.33 : output ? 1.19 : 1) / ranks;
    const double lh_mb = static_cast<double>(model_.layers) * model_.hidden / (1024.0 * 1024.0);
    const double all_to_all_mb = 16 * lh_mb * s * (full ? 1.5 : output ? 1.375 : 1);
    const double ring_mb = 12 * lh_mb * s * (full ? 4.0 / 3 : 1);
    if (way.core == "DataZ") {
      return (attention + rest) / 1000;
    }
    if (way.core == "UlyssesZ") {
      // all wait for the rank with most heads, where their number is no power of two
      const double heads = model_.hidden / 128.0;
      const double most = std::has_single_bit(d) ? heads / ranks : std::ceil(heads / ranks);
      const double wait = std::max(1.0, most * ranks / heads);
      const double exchange = all_to_all_mb / ranks / flexsp_all_to_all(static_cast<int>(d));
      return (attention * wait + rest + exchange * wait) / 1000;
    }
    double around = 0;
    double exchange = 0;
    if (way.core == "MegatronCZ") {
      around = ring_mb * (ranks - 1) / ranks / (d > kFlexspNode ? 44 : flexsp_all_to_all(2));
    } else {  // USP
      const double nodes = ranks / kFlexspNode;
      around = ring_mb / kFlexspNode * (nodes - 1) / nodes / (44.0 / kFlexspNode);
      exchange = all_to_all_mb / ranks / flexsp_all_to_all(kFlexspNode);
    }
    return ((options_.overlapped ? std::max(attention, around) : attention + around) + rest +
            exchange) /
           1000;
  }

  [[nodiscard]] double micro_batch_seconds(double slowest) const {
    const double beside = options_.node_domain ? 3 * 2 * parameters_ / (flexsp_all_to_all(2) * 1e9)
                                               : model_.b1_ms / 1000;
    return options_.overlapped ? std::max(beside, slowest) : beside + slowest;
  }

  // Gradients of a batch, summed over nodes.
  [[nodiscard]] double batch_seconds() const {
    const double nodes = std::ceil(static_cast<double>(ranks_) / kFlexspNode);
    return options_.node_domain ? 4 * parameters_ * (nodes - 1) / nodes / 44e9 : 0;
  }

 private:
  const FlexspModel& model_;
  FlexspFull options_;
  int ranks_;
  int domain_ = 1;
  double parameters_ = 0;
  double memory_mb_ = 0;
};

constexpr double kRelative = 1e-6;  // what predictions may be off

void check_names(const Plan& plan, const FlexspSetting& setting, Problems& found) {
  const FlexspModel& model = *setting.model;
  const auto require = [&](bool sound, const std::string& what) {
    if (!sound) {
      found.push_back(what);
    }
  };
  require(
      plan.model_name == model.name,
      "model.name: the plan is for '" + plan.model_name + "', the preset is '" + model.name + "'");
  require(
      plan.model_sha256.empty(),
      "model.sha256: '" + plan.model_sha256 +
          "': a preset is not a model and has no fingerprint; leave it empty");
  require(
      plan.layers == model.layers,
      "model.layers: " + text(plan.layers) + ", the preset " + model.name + " has " +
          text(model.layers));
  require(
      plan.cluster_name == kFlexspCluster,
      "cluster.name: the plan is for '" + plan.cluster_name + "', the preset is '" +
          kFlexspCluster + "'");
  require(
      plan.cluster_sha256.empty(),
      "cluster.sha256: '" + plan.cluster_sha256 +
          "': a preset is not a cluster file and has no fingerprint; leave it empty");
  require(
      plan.ranks == setting.ranks,
      "cluster.ranks: the plan is for " + text(plan.ranks) + " ranks, the check is for " +
          text(setting.ranks) + ": check it with --ranks " + text(plan.ranks) +
          ", or plan for these");
}

void check_seconds(
    const std::string& path, const Predicted& predicted, double right, Problems& found) {
  if (predicted.seconds && !(std::abs(*predicted.seconds - right) <= kRelative * right)) {
    found.push_back(
        path + ".predicted.seconds: " + text(*predicted.seconds) +
        ", the published formula gives " + text(right));
  }
}

// What a group has room for and takes; nothing: the space has no such group.
struct GroupCost {
  std::int64_t capacity = 0;
  std::function<double(std::int64_t tokens)> seconds;  // of a document
};

// What the formulas say of a plan.
struct Costs {
  std::function<std::optional<GroupCost>(const PlanGroup&)> group;
  std::function<double(double slowest)> micro_batch;
  double batch_seconds = 0;  // beside its micro-batches
};

void check_documents(const Plan& plan, const FlexspSetting& setting, Problems& found) {
  if (setting.ranks < 1 || setting.context < 1) {
    throw std::invalid_argument(
        "flexsp: " + text(setting.ranks) + " ranks and a context of " + text(setting.context) +
        " tokens: at least 1 of each is needed");
  }
  check_names(plan, setting, found);
  for (std::size_t d = 0; d < plan.lengths.size(); ++d) {
    if (plan.lengths[d] < 1 || plan.lengths[d] > setting.context) {
      found.push_back(
          path_to("lengths", d) + ": " + text(plan.lengths[d]) +
          " tokens: documents have from 1 to the context's " + text(setting.context));
    }
  }
}

void check_costs(const Plan& plan, const Costs& costs, Problems& found) {
  double total = costs.batch_seconds;
  for (std::size_t m = 0; m < plan.micro_batches.size(); ++m) {
    const PlanMicroBatch& micro_batch = plan.micro_batches[m];
    double slowest = 0;
    for (std::size_t g = 0; g < micro_batch.groups.size(); ++g) {
      const PlanGroup& group = micro_batch.groups[g];
      const std::string path = path_of(m, g);
      const std::size_t d = group.ranks.size();
      const std::optional<GroupCost> cost = costs.group(group);
      if (!cost) {
        continue;  // said elsewhere
      }
      std::int64_t tokens = 0;
      double seconds = 0;
      for (const std::int64_t document : group.documents) {
        if (document >= 0 && document < static_cast<std::int64_t>(plan.lengths.size())) {
          tokens += plan.lengths[idx(document)];
          seconds += cost->seconds(plan.lengths[idx(document)]);
        }
      }
      if (tokens > cost->capacity) {
        found.push_back(
            path + ": " + text(tokens) + " tokens, but a group of " + text(d) +
            (d == 1 ? " rank" : " ranks") + " holds " + text(cost->capacity) +
            ": give it fewer documents, or more ranks");
      }
      check_seconds(path, group.predicted, seconds, found);
      slowest = std::max(slowest, seconds);
    }
    const double seconds = costs.micro_batch(slowest);
    check_seconds(path_to("micro_batches", m), micro_batch.predicted, seconds, found);
    total += seconds;
  }
  if (plan.predicted.seconds && !(std::abs(*plan.predicted.seconds - total) <= kRelative * total)) {
    found.push_back(
        "predicted.seconds: " + text(*plan.predicted.seconds) + ", the published formula gives " +
        text(total));
  }
  if (plan.predicted.lower_bound_seconds &&
      !(*plan.predicted.lower_bound_seconds <= total * (1 + kRelative))) {
    found.push_back(
        "predicted.lower_bound_seconds: " + text(*plan.predicted.lower_bound_seconds) +
        ", but this plan takes " + text(total) + ": the bound is none");
  }
}

}  // namespace

std::vector<std::string> flexsp_space_problems(const Plan& plan) {
  Problems found;
  if (plan.weight_domain != plan.ranks) {
    found.push_back(
        "weight_domain: " + text(plan.weight_domain) + " of " + text(plan.ranks) +
        " ranks: the space flexsp shards weights over all");
  }
  for_each_group(plan, [&](const std::string& path, const PlanGroup& group) {
    check_ranks(path, group, found);
    check_program(plan, path, group, found);
    if (!group.shares.empty()) {
      found.push_back(path + ".shares: the space flexsp shards documents evenly: leave them out");
    }
    if (!group.mesh.empty()) {
      found.push_back(path + ".mesh: groups of the space flexsp have one axis: leave it out");
    }
  });
  return found;
}

std::vector<std::string> flexsp_preset_problems(const Plan& plan, const FlexspSetting& setting) {
  Problems found;
  check_documents(plan, setting, found);
  const Formula formula(setting);
  const auto group = [&](const PlanGroup& one) -> std::optional<GroupCost> {
    const std::size_t d = one.ranks.size();
    if (!std::has_single_bit(d) || d > idx(setting.ranks)) {
      return std::nullopt;
    }
    return GroupCost{
        .capacity = formula.capacity(d),
        .seconds = [&formula, d](std::int64_t tokens) { return formula.seconds(tokens, d); }};
  };
  const auto micro_batch = [&](double slowest) { return formula.micro_batch_seconds() + slowest; };
  check_costs(plan, {.group = group, .micro_batch = micro_batch}, found);
  return found;
}

std::vector<std::string> flexsp_full_space_problems(const Plan& plan, const FullSpace& space) {
  Problems found;
  if (space.node > 0 && plan.weight_domain != plan.ranks && plan.weight_domain != space.node) {
    found.push_back(
        "weight_domain: " + text(plan.weight_domain) + " of " + text(plan.ranks) +
        " ranks: the space full shards weights over all ranks, or over each node of " +
        text(space.node));
  }
  for_each_group(plan, [&](const std::string& path, const PlanGroup& group) {
    check_ranks_in_nodes(path, group, space.node, found);
    const auto program = plan.programs.find(group.program);
    std::string why;
    if (program != plan.programs.end() &&
        !way_of(program->second, group.ranks.size(), space, why)) {
      found.push_back(path_to("programs", group.program) + why + " (" + path + ")");
    }
    if (!group.shares.empty()) {
      found.push_back(path + ".shares: the space full shards documents evenly: leave them out");
    }
    if (!group.mesh.empty()) {
      found.push_back(path + ".mesh: groups of the space full have one axis: leave it out");
    }
  });
  return found;
}

std::vector<std::string> flexsp_full_preset_problems(
    const Plan& plan, const FlexspSetting& setting, const FlexspFull& options) {
  Problems found;
  check_documents(plan, setting, found);
  const int domain = options.node_domain ? std::min(kFlexspNode, setting.ranks) : setting.ranks;
  if (plan.weight_domain != domain && plan.ranks == setting.ranks) {
    found.push_back(
        "weight_domain: the plan shards weights over " + text(plan.weight_domain) +
        " ranks, the check is for " + text(domain) + ": check it with --weight-domain " +
        (options.node_domain ? "world" : "node") + ", or plan for this");
  }
  const FullFormula formula(setting, options);
  const auto group = [&](const PlanGroup& one) -> std::optional<GroupCost> {
    const std::size_t d = one.ranks.size();
    const auto program = plan.programs.find(one.program);
    if (d == 0 || d > idx(setting.ranks) || (d > kFlexspNode && d % kFlexspNode != 0) ||
        program == plan.programs.end()) {
      return std::nullopt;
    }
    std::string why;
    const std::optional<Way> way = way_of(program->second, d, {}, why);
    if (!way) {
      return std::nullopt;
    }
    return GroupCost{
        .capacity = formula.capacity(*way, d), .seconds = [&formula, way, d](std::int64_t tokens) {
          return formula.seconds(*way, tokens, d);
        }};
  };
  const auto micro_batch = [&](double slowest) { return formula.micro_batch_seconds(slowest); };
  check_costs(
      plan,
      {.group = group, .micro_batch = micro_batch, .batch_seconds = formula.batch_seconds()},
      found);
  return found;
}

}  // namespace paradyse
