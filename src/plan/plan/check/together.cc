#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "src/plan/base/number_text.h"
#include "src/plan/base/plan_path.h"
#include "src/plan/plan/check/findings.h"

namespace paradyse::check {
namespace {

// The first layer in which two sound programs differ in what `of` says of a run, or -1.
template <typename Of>
std::int64_t first_difference(
    const std::vector<VerbRun>& a, const std::vector<VerbRun>& b, const Of& of) {
  std::int64_t layer = 0;
  std::size_t i = 0;
  std::size_t j = 0;
  std::int64_t a_end = a.empty() ? 0 : a[0].layers;
  std::int64_t b_end = b.empty() ? 0 : b[0].layers;
  while (i < a.size() && j < b.size()) {
    if (of(a[i]) != of(b[j])) {
      return layer;
    }
    layer = std::min(a_end, b_end);
    if (a_end == layer && ++i < a.size()) {
      a_end += a[i].layers;
    }
    if (b_end == layer && ++j < b.size()) {
      b_end += b[j].layers;
    }
  }
  return -1;
}

// The part's name and verb.
std::pair<std::string, std::string> verb_at(
    const std::vector<VerbRun>& runs, std::int64_t layer, std::size_t part) {
  std::int64_t end = 0;
  for (const VerbRun& run : runs) {
    end += run.layers;
    if (layer < end && part < run.parts.size()) {
      return {(*run.choice)[part].part, to_string(run.parts[part])};
    }
  }
  return {"part", "nothing"};
}

bool holds_weights(const CheckedGroup& group) {
  return std::ranges::any_of(group.program->verbs, [](const VerbRun& run) {
    return std::ranges::count(run.parts, Verb::hold) > 0;
  });
}

// Part of a sharding group may hold weights where its groups are of one size, one after the other:
// each rank then knows what every other wants of its shard.
void check_held(Findings& findings, const std::vector<CheckedGroup>& groups) {
  const int domain = findings.plan.weight_domain;
  for_each_pair_of_a_domain(groups, [&](const CheckedGroup& a, const CheckedGroup& b) {
    if (holds_weights(b) && a.group->ranks.size() != b.group->ranks.size()) {
      findings.say(
          b.path + ".ranks",
          fmt::format(
              "{} next to {} of {}: '{}' is tensor parallel, for which all groups of a sharding "
              "group (weight_domain) must have the same size",
              counted(std::ssize(b.group->ranks), "rank"),
              counted(std::ssize(a.group->ranks), "rank"),
              a.path,
              b.group->program));
    }
  });
  for (const CheckedGroup& group : groups) {
    if (group.program == nullptr || group.domain < 0 || !holds_weights(group)) {
      continue;
    }
    const std::vector<int>& ranks = group.group->ranks;
    const auto size = static_cast<int>(ranks.size());
    if (ranks.back() - ranks.front() + 1 != size || ranks.front() % domain % size != 0) {
      findings.say(
          group.path + ".ranks",
          fmt::format(
              "'{}' is tensor parallel, for which the ranks of a group must be consecutive and the "
              "first must be a multiple of {} within its sharding group (weight_domain)",
              group.group->program,
              size));
    }
  }
}

}  // namespace

// The groups are disjoint and cover the ranks; the latter is returned.
bool check_cover(
    Findings& findings, const std::string& path, const std::vector<CheckedGroup>& groups) {
  std::map<std::int64_t, const CheckedGroup*> owner;
  for (const CheckedGroup& group : groups) {
    for (std::size_t i = 0; i < group.group->ranks.size(); ++i) {
      const int rank = group.group->ranks[i];
      const auto [other, first] = owner.emplace(rank, &group);
      if (!first && other->second != &group) {
        findings.say(
            path_to(group.path + ".ranks", i),
            "rank " + text(rank) + " is already in " + other->second->path +
                ": groups of a micro-batch are disjoint");
      }
    }
  }
  std::string missing;
  std::int64_t next = 0;
  const auto gap = [&](std::int64_t end) {
    if (next < end) {
      missing += (missing.empty() ? "" : ", ") + text(Interval{next, end});
    }
    next = end + 1;
  };
  for (auto it = owner.lower_bound(0); it != owner.end() && it->first < findings.plan.ranks; ++it) {
    gap(it->first);
  }
  gap(findings.plan.ranks);
  if (!missing.empty()) {
    findings.say(
        path + ".groups",
        "ranks " + missing + " are in no group: the groups of a micro-batch cover all ranks; " +
            "an idle rank is a group without documents");
  }
  return missing.empty();
}

void check_lock_step(Findings& findings, const std::vector<CheckedGroup>& groups) {
  for_each_pair_of_a_domain(groups, [&](const CheckedGroup& a, const CheckedGroup& b) {
    std::size_t parts = 0;  // of the layers that have most
    for (const VerbRun& run : a.program->verbs) {
      parts = std::max(parts, run.parts.size());
    }
    for (std::size_t part = 0; part < parts; ++part) {
      const std::int64_t layer =
          first_difference(a.program->verbs, b.program->verbs, [&](const VerbRun& run) {
            return part < run.parts.size() ? std::optional(run.parts[part]) : std::nullopt;
          });
      if (layer >= 0) {
        const auto [name, verb] = verb_at(b.program->verbs, layer, part);
        findings.say(
            b.path + ".program",
            fmt::format(
                "in layer {} its {} has the weight mode '{}', that of {} '{}': groups of a "
                "sharding group (weight_domain) must call the same collectives in the same order",
                layer,
                name,
                verb,
                a.path,
                verb_at(a.program->verbs, layer, part).second));
      }
    }
    const std::int64_t layer = first_difference(
        a.program->verbs, b.program->verbs, [](const VerbRun& run) { return run.whole; });
    if (layer >= 0) {
      findings.say(
          b.path + ".program",
          "of this group and " + a.path + " only one recomputes layer " + text(layer) +
              " as a whole: groups of a sharding group (weight_domain) must "
              "call the same collectives in the same order");
    }
  });
  check_held(findings, groups);
}

}  // namespace paradyse::check
