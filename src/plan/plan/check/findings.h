// What the rules of the checker share: the plan, what is known of it so far, and what is wrong.
// Each file here is a rule or a few, in the order in which plan_check.cc asks them.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/plan/plan/group_timeline.h"

namespace paradyse::check {

// The verb of each part over a run of layers.
struct VerbRun {
  std::int64_t layers = 0;
  const LayerChoice* choice = nullptr;
  std::vector<Verb> parts;
  bool whole = false;  // made again as a whole
};

// What can be said of a program without a group.
struct CheckedProgram {
  bool sound = false;          // all names known and as many layers as the model
  std::vector<VerbRun> verbs;  // when sound
};

// A group of a micro-batch, and what is known of it so far.
struct CheckedGroup {
  const PlanGroup* group = nullptr;
  std::string path;
  const CheckedProgram* program = nullptr;  // null: unknown or unsound
  int domain = -1;                          // number of its weight domain; -1: in none or several
  bool buildable = false;
};

struct Findings {
  Findings(const Plan& checked, const CheckContext& against);

  const Plan& plan;
  const CheckContext& context;
  std::optional<Model> model;  // of the context
  bool sizes_sound = false;
  bool domains_sound = false;
  std::map<std::string, CheckedProgram> programs;
  std::vector<std::string> problems;

  void say(const std::string& path, const std::string& what);
  // Calls `look`; what it throws is a problem at `path`.
  bool known(const std::string& path, const std::function<void()>& look);
  [[nodiscard]] bool document_exists(std::int64_t document) const;
  // The plan is of a multi-axis model, whose batches bring samples in place of documents.
  [[nodiscard]] bool of_samples() const;
};

// Numbers as messages have them; ranks of an interval inclusive.
template <std::integral Number>
std::string text(Number number) {
  return std::to_string(number);
}
std::string text(double number);
std::string text(Interval ranks);

// Ranks, weight domain, the model and its dims, lengths.
void check_sizes(Findings& findings);
// Programs by themselves: their parts, names and layers.
void check_programs(Findings& findings);
// There are documents, and each stands in exactly one group of the whole plan.
void check_documents(Findings& findings);
// A group by itself: ranks, shares, mesh, documents, and that its program suits it.
CheckedGroup check_group(Findings& findings, const std::string& path, const PlanGroup& group);
// Groups of a micro-batch together: they are disjoint and cover the ranks (which is returned), and
// those of a domain run in lock-step.
bool check_cover(
    Findings& findings, const std::string& path, const std::vector<CheckedGroup>& groups);
void check_lock_step(Findings& findings, const std::vector<CheckedGroup>& groups);
// What can be proved only on the programs themselves: equal collectives, what parts are expected to
// send and write, and memory.
void check_built(Findings& findings, const std::vector<CheckedGroup>& groups);

// What parts are expected to send and write, of one group.
void check_expected(Findings& findings, const CheckedGroup& group, const GroupTimeline& built);

// The first group of each weight domain, with which the others are compared.
template <typename Compare>
void for_each_pair_of_a_domain(const std::vector<CheckedGroup>& groups, Compare compare) {
  std::map<int, const CheckedGroup*> first;
  for (const CheckedGroup& group : groups) {
    if (group.program == nullptr || group.domain < 0) {
      continue;
    }
    const auto [entry, fresh] = first.emplace(group.domain, &group);
    if (!fresh) {
      compare(*entry->second, group);
    }
  }
}

}  // namespace paradyse::check
