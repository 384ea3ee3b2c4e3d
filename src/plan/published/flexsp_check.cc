#include "src/plan/published/flexsp_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <sstream>
#include <stdexcept>

#include "paradyse/plan/index.h"
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
  for (std::size_t i = 1; i < size; ++i) {
    if (group.ranks[i] != group.ranks[i - 1] + 1) {
      found.push_back(
          path_to(path + ".ranks", i) + ": rank " + text(group.ranks[i]) + " stands after rank " +
          text(group.ranks[i - 1]) + ": ranks of a group follow one another in the space flexsp");
      return;
    }
  }
  if (group.ranks[0] % static_cast<int>(size) != 0) {
    found.push_back(
        path + ".ranks: a group of " + text(size) + " begins at rank " + text(group.ranks[0]) +
        ": in the space flexsp it begins at a multiple of " + text(size));
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
  if (part.offload || !part.options.empty() || !part.in.empty()) {
    return ": the space flexsp knows no offload, no options and no placements: leave them out";
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

// --- a preset ------------------------------------------------------------------------------------

// The published formulas once more, written as they stand there (docs: the head of flexsp.h), so
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
          "': the preset is no model, hence has no fingerprint; leave it empty");
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
          "': the preset is no cluster file, hence has no fingerprint; leave it empty");
  require(
      plan.ranks == setting.ranks,
      "cluster.ranks: the plan is for " + text(plan.ranks) + " ranks, asked is about " +
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

}  // namespace

std::vector<std::string> flexsp_space_problems(const Plan& plan) {
  Problems found;
  if (plan.weight_domain != plan.ranks) {
    found.push_back(
        "weight_domain: " + text(plan.weight_domain) + " of " + text(plan.ranks) +
        " ranks: the space flexsp cuts weights over all");
  }
  for_each_group(plan, [&](const std::string& path, const PlanGroup& group) {
    check_ranks(path, group, found);
    check_program(plan, path, group, found);
    if (!group.shares.empty()) {
      found.push_back(path + ".shares: the space flexsp cuts documents evenly: leave them out");
    }
    if (!group.mesh.empty()) {
      found.push_back(path + ".mesh: groups of the space flexsp have one axis: leave it out");
    }
  });
  return found;
}

std::vector<std::string> flexsp_preset_problems(const Plan& plan, const FlexspSetting& setting) {
  if (setting.ranks < 1 || setting.context < 1) {
    throw std::invalid_argument(
        "flexsp: " + text(setting.ranks) + " ranks and a context of " + text(setting.context) +
        " tokens: at least 1 of each is needed");
  }
  Problems found;
  check_names(plan, setting, found);
  for (std::size_t d = 0; d < plan.lengths.size(); ++d) {
    if (plan.lengths[d] < 1 || plan.lengths[d] > setting.context) {
      found.push_back(
          path_to("lengths", d) + ": " + text(plan.lengths[d]) +
          " tokens: documents have from 1 to the context's " + text(setting.context));
    }
  }
  const Formula formula(setting);
  double total = 0;
  for (std::size_t m = 0; m < plan.micro_batches.size(); ++m) {
    const PlanMicroBatch& micro_batch = plan.micro_batches[m];
    double slowest = 0;
    for (std::size_t g = 0; g < micro_batch.groups.size(); ++g) {
      const PlanGroup& group = micro_batch.groups[g];
      const std::string path = path_of(m, g);
      const std::size_t d = group.ranks.size();
      if (!std::has_single_bit(d) || d > idx(setting.ranks)) {
        continue;  // the space has no such group, or the cluster
      }
      std::int64_t tokens = 0;
      double seconds = 0;
      for (const std::int64_t document : group.documents) {
        if (document >= 0 && document < static_cast<std::int64_t>(plan.lengths.size())) {
          tokens += plan.lengths[idx(document)];
          seconds += formula.seconds(plan.lengths[idx(document)], d);
        }
      }
      if (tokens > formula.capacity(d)) {
        found.push_back(
            path + ": " + text(tokens) + " tokens, and a group of " + text(d) +
            (d == 1 ? " rank" : " ranks") + " has room for " + text(formula.capacity(d)) +
            ": give it fewer documents, or more ranks");
      }
      check_seconds(path, group.predicted, seconds, found);
      slowest = std::max(slowest, seconds);
    }
    const double seconds = formula.micro_batch_seconds() + slowest;
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
  return found;
}

}  // namespace paradyse
