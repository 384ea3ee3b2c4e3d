#include <algorithm>
#include <vector>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/op_traits.h"
#include "src/plan/base/plan_path.h"
#include "src/plan/plan/check/findings.h"

namespace paradyse::check {
namespace {

// A part of a run of layers in the plan.
struct Expected {
  std::string path;
  const PartChoice* choice = nullptr;
  std::int64_t first_layer = 0;
  std::int64_t layers = 0;

  [[nodiscard]] bool has(std::int64_t layer) const {
    return layer >= first_layer && layer < first_layer + layers;
  }
};

std::vector<Expected> expected_of(const Plan& plan, const std::string& name) {
  std::vector<Expected> all;
  std::int64_t first = 0;
  const LayerRuns& runs = plan.programs.at(name);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (std::size_t p = 0; p < runs[i].choice.size(); ++p) {
      const PartChoice& choice = runs[i].choice[p];
      if (!choice.out.empty() || choice.elements) {
        all.push_back(
            {.path = path_to(path_to(path_to("programs", name), i) + ".parts", p),
             .choice = &choice,
             .first_layer = first,
             .layers = runs[i].layers});
      }
    }
    first += runs[i].layers;
  }
  return all;
}

void check_elements(
    Findings& findings,
    const Expected& one,
    const PartChoice::Elements& expected,
    const CheckedGroup& group,
    const GroupTimeline& built) {
  GroupElements most;
  for (const Seat& seat : built.seats) {
    GroupElements mine;
    GroupElements moved;  // in front of the part that comes next
    for (const ScheduledPart& part : built.parts) {
      moved += sent_in_group(part, seat);
      if (part.weights < 0) {
        continue;
      }
      if (one.has(part.layer) && part.program().part == one.choice->part) {
        mine += moved;
      }
      moved = {};
    }
    most = {std::max(most.forward, mine.forward), std::max(most.backward, mine.backward)};
  }
  const auto compare = [&](const char* way, std::int64_t wanted, std::int64_t found) {
    if (wanted != found) {
      findings.say(
          one.path + ".elements." + way,
          "expected " + text(wanted) + ", but the rank of " + group.path +
              " that sends most sends " + text(found));
    }
  };
  compare("forward", expected.forward, most.forward);
  compare("backward", expected.backward, most.backward);
}

void check_out(
    Findings& findings,
    const Expected& one,
    const CheckedGroup& group,
    const GroupTimeline& built) {
  const auto part = std::ranges::find_if(built.parts, [&](const ScheduledPart& p) {
    return one.has(p.layer) && p.weights >= 0 && p.program().part == one.choice->part;
  });
  if (part == built.parts.end()) {
    return;
  }
  const Program& program = part->program();
  for (const auto& [stream, placement] : one.choice->out) {
    const std::string path = path_to(one.path + ".out", stream);
    const auto written = std::ranges::find(program.writes, stream, &Port::stream);
    if (written == program.writes.end()) {
      findings.say(path, "the part writes no tensor '" + stream + "'");
      continue;
    }
    const Layout& found = program.values[idx(written->value)].layout;
    findings.known(path, [&, name = stream, expected = placement] {
      // In whatever order it is stored.
      const Layout wanted = placed(findings.model->stream(name), program.documents, expected)
                                .along(found.dims[found.dims.size() - 2].name);
      if (!lie_alike(wanted, found, program.ranks())) {
        findings.say(
            path,
            "expected " + to_string(expected) + ", but in " + group.path + " it is sharded as " +
                to_string(found));
      }
    });
  }
}

}  // namespace

void check_expected(Findings& findings, const CheckedGroup& group, const GroupTimeline& built) {
  for (const Expected& one : expected_of(findings.plan, group.group->program)) {
    check_out(findings, one, group, built);
    if (const auto& elements = one.choice->elements) {
      check_elements(findings, one, *elements, group, built);
    }
  }
}

}  // namespace paradyse::check
