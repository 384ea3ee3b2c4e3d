#include <algorithm>
#include <stdexcept>

#include "src/plan/base/json_node.h"
#include "src/plan/base/plan_path.h"
#include "src/plan/base/text_match.h"
#include "src/plan/plan/check/findings.h"
#include "src/plan/plan/size_limits.h"

namespace paradyse::check {
namespace {

// Positive numbers, one a rank.
void check_shares(Findings& findings, const std::string& path, const PlanGroup& group) {
  const std::vector<double>& shares = group.shares;
  if (shares.empty()) {
    return;
  }
  if (shares.size() != group.ranks.size()) {
    findings.say(
        path,
        text(shares.size()) + " for a group of " + text(group.ranks.size()) +
            " ranks: give each rank one, or leave the key out for even cuts");
  }
  for (std::size_t r = 0; r < shares.size(); ++r) {
    if (!(shares[r] > 0 && shares[r] <= kMostNumber)) {
      findings.say(
          path_to(path, r),
          text(shares[r]) + ": a share is a positive number, at most 1e+30; a rank that gets no " +
              "tokens is an idle group of its own");
    }
  }
}

// Samples are cut by dims, evenly.
void check_samples(Findings& findings, const std::string& path, const PlanGroup& group) {
  if (!group.shares.empty()) {
    findings.say(
        path + ".shares",
        "shares cut documents of language models; the dims of a multi-axis model are cut evenly: "
        "leave the key out");
  }
  const auto holds_several = [](const Stream& stream) {
    return std::ranges::find(stream.rows, "batch") != stream.rows.end();
  };
  if (findings.model && group.documents.size() > 1 &&
      std::ranges::none_of(findings.model->streams, holds_several)) {
    findings.say(
        path + ".documents",
        text(group.documents.size()) +
            " samples: this model runs one at a time; put each into a group or micro-batch of its "
            "own");
  }
}

// Positive sizes, whose product is the group's ranks.
void check_mesh(Findings& findings, const std::string& path, const PlanGroup& group) {
  if (group.mesh.empty()) {
    return;
  }
  std::int64_t product = 1;
  for (std::size_t axis = 0; axis < group.mesh.size(); ++axis) {
    if (group.mesh[axis] < 1) {
      findings.say(path_to(path, axis), text(group.mesh[axis]) + ": an axis has at least 1 rank");
      return;
    }
    product = std::min<std::int64_t>(product * group.mesh[axis], findings.plan.ranks + 1);
  }
  if (product != static_cast<std::int64_t>(group.ranks.size())) {
    findings.say(
        path, "the product of its axes must be the group's " + text(group.ranks.size()) + " ranks");
  }
}

// Streams can be placed as the choice says, on the group's mesh.
void check_placements(
    Findings& findings,
    const std::string& path,
    const PartChoice& choice,
    const CheckedGroup& checked) {
  const PlanGroup& group = *checked.group;
  const std::size_t axes = std::max<std::size_t>(1, group.mesh.size());
  for (const auto& [stream, placement] : choice.in) {
    const auto refuse = [&, name = stream](const std::string& why) {
      findings.say(path_to(path, name), why + " (" + checked.path + ")");
    };
    if (placement.size() != axes) {
      refuse(
          text(placement.size()) + " placements for a mesh of " + text(axes) +
          (axes == 1 ? " axis" : " axes") + ": give one for each");
      continue;
    }
    if (!findings.model) {
      continue;
    }
    const Part& part = *findings.model->part(choice.part);
    if (std::ranges::find(part.reads, stream) == part.reads.end()) {
      refuse("the part reads no tensor '" + stream + "'");
      continue;
    }
    try {
      placed(
          findings.model->stream(stream),
          {.lengths = std::vector<std::int64_t>(group.documents.size()),
           .cuts = Cuts(group.ranks.size()),
           .dims = dims_of(findings.plan, group),
           .mesh = group.mesh},
          placement);
    } catch (const std::invalid_argument& error) {
      refuse(error.what());
    }
  }
}

// Ranks ascend, are the cluster's and lie in one weight domain.
void check_ranks(Findings& findings, CheckedGroup& checked) {
  const std::vector<int>& ranks = checked.group->ranks;
  const std::string path = checked.path + ".ranks";
  if (ranks.empty()) {
    findings.say(path, "no ranks: a group has at least 1");
    return;
  }
  bool sound = true;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= findings.plan.ranks) {
      findings.say(
          path_to(path, i),
          "rank " + text(ranks[i]) + " does not exist: the cluster has " +
              text(findings.plan.ranks) + ", counted from 0");
      sound = false;
    } else if (i > 0 && ranks[i] <= ranks[i - 1]) {
      findings.say(
          path_to(path, i),
          "rank " + text(ranks[i]) + " comes after rank " + text(ranks[i - 1]) +
              ": ranks of a group ascend");
      sound = false;
    }
  }
  if (!sound || !findings.domains_sound || whole_weights(findings.plan)) {
    return;  // groups that gather no weights wait for no others
  }
  const int first = ranks.front() / findings.plan.weight_domain;
  const int last = ranks.back() / findings.plan.weight_domain;
  if (first != last) {
    findings.say(
        path,
        "the group spans the sharding groups " + text(first) + " and " + text(last) + " of " +
            text(findings.plan.weight_domain) + " ranks each: a group must be inside one");
  } else {
    checked.domain = first;
  }
}

// The program's strategies run on a group of this size.
void check_fit(Findings& findings, const CheckedGroup& checked) {
  const std::size_t size = checked.group->ranks.size();
  const LayerRuns& runs = findings.plan.programs.at(checked.group->program);
  const std::string program = path_to("programs", checked.group->program);
  Task task{
      .part = nullptr,
      .documents = {.lengths = {}, .cuts = Cuts(size)},
      .domain = gathers_from(findings.plan)};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (std::size_t p = 0; p < runs[i].choice.size(); ++p) {
      const PartChoice& choice = runs[i].choice[p];
      const std::string part = path_to(path_to(program, i) + ".parts", p);
      task.part = findings.model ? findings.model->part(choice.part) : nullptr;
      for (const Misfit& misfit : misfits(task, choice)) {
        if (misfit.option.empty()) {
          findings.say(
              checked.path + ".program",
              "'" + choice.strategy + "' (" + part + ".strategy) " + misfit.why);
        } else {
          findings.say(part + "." + misfit.option, misfit.why + " (" + checked.path + ")");
        }
      }
      check_placements(findings, part + ".in", choice, checked);
    }
  }
}

// Rows times the dim that they attend along; without a model, along the longest.
double pairs_of_a_sample(const Findings& findings, const PlanGroup& group, double rows) {
  const DimSizes& dims = dims_of(findings.plan, group);
  if (findings.model) {
    return attended_pairs(*findings.model, dims);
  }
  std::int64_t longest = 0;
  for (const auto& [dim, size] : dims) {
    longest = std::max(longest, size);
  }
  return rows * static_cast<double>(longest);
}

void check_pairs(Findings& findings, const std::string& path, const PlanGroup& group) {
  double pairs = 0;
  for (const std::int64_t document : group.documents) {
    if (findings.document_exists(document)) {
      const auto length = static_cast<double>(findings.plan.lengths[idx(document)]);
      pairs += findings.of_samples() ? pairs_of_a_sample(findings, group, length) : length * length;
    }
  }
  if (pairs > kMostPairs && findings.of_samples()) {
    findings.say(
        path + ".documents",
        text(pairs) + " pairs of rows attend to each other: at most " + text(kMostPairs) +
            " are counted; give the group fewer or smaller samples");
  } else if (pairs > kMostPairs) {
    findings.say(
        path + ".documents",
        "their lengths squared add up to " + text(pairs) + ": at most " + text(kMostPairs) +
            " are counted, one document of 23 million tokens; give the group fewer or cut them");
  }
}

}  // namespace

CheckedGroup check_group(Findings& findings, const std::string& path, const PlanGroup& group) {
  CheckedGroup checked{.group = &group, .path = path};
  const std::size_t before = findings.problems.size();
  check_ranks(findings, checked);
  const std::size_t size = group.ranks.size();
  if (group.documents.empty() && size > 1) {
    findings.say(
        path + ".documents",
        "none for a group of " + text(size) + " ranks: each idle rank is a group of its own");
  }
  check_pairs(findings, path, group);
  if (findings.of_samples()) {
    check_samples(findings, path, group);
  } else {
    check_shares(findings, path + ".shares", group);
  }
  check_mesh(findings, path + ".mesh", group);
  const auto found = findings.programs.find(group.program);
  if (found == findings.programs.end()) {
    std::vector<std::string> names;
    names.reserve(findings.programs.size());
    for (const auto& [name, program] : findings.programs) {
      names.push_back(name);
    }
    findings.say(
        path + ".program",
        "there is no program '" + group.program + "'" + did_you_mean(group.program, names) +
            "; there are: " + joined(names, ", "));
  } else if (found->second.sound) {
    checked.program = &found->second;
    // what lies over no ranks, or a mesh of another size, fits nothing
    if (findings.problems.size() == before || (group.mesh.empty() && size > 0)) {
      check_fit(findings, checked);
    }
  }
  checked.buildable =
      checked.program != nullptr && findings.problems.size() == before &&
      std::all_of(group.documents.begin(), group.documents.end(), [&](std::int64_t d) {
        return findings.document_exists(d);
      });
  return checked;
}

}  // namespace paradyse::check
