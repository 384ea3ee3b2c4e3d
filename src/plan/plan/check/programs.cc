#include <algorithm>
#include <memory>

#include "src/plan/base/plan_path.h"
#include "src/plan/base/text_match.h"
#include "src/plan/plan/check/findings.h"

namespace paradyse::check {
namespace {

// The parts of the layers of a run that begins with `first`; fewer layers may have them than it is
// of.  Layers whose parts are called alike take one choice, also where they differ (in a window).
struct PartsOfRun {
  std::vector<std::string> names;
  std::int64_t layers = 0;
};

std::vector<std::string> names_of(const Stack& stack) {
  std::vector<std::string> names;
  names.reserve(stack.parts.size());
  for (const std::shared_ptr<const Part>& part : stack.parts) {
    names.push_back(part->name);
  }
  return names;
}

PartsOfRun parts_of_run(
    const Findings& findings,
    const std::vector<Stack>& stacks,
    const LayerRun& run,
    std::int64_t first) {
  for (const Stack& stack : stacks) {
    if (first >= stack.first && first < stack.first + stack.layers) {
      PartsOfRun found{.names = names_of(stack), .layers = stack.first + stack.layers - first};
      for (const Stack& next : stacks) {
        if (next.first == first + found.layers && names_of(next) == found.names) {
          found.layers += next.layers;
        }
      }
      return found;
    }
  }
  return {
      .names =
          parts_like(findings.plan.model_name, run.choice.empty() ? "" : run.choice.front().part),
      .layers = run.layers};
}

CheckedProgram check_program(
    Findings& findings,
    const std::vector<Stack>& stacks,
    const std::string& path,
    const LayerRuns& runs) {
  CheckedProgram checked{.sound = true, .verbs = {}};
  std::int64_t rest = findings.plan.layers;
  std::int64_t first = 0;
  bool counted = true;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const LayerRun& run = runs[i];
    const std::string here = path_to(path, i);
    if (run.layers < 1) {
      findings.say(here + ".layers", text(run.layers) + " layers: a run has at least 1");
      counted = false;
    } else if (counted && run.layers > rest) {
      findings.say(
          here + ".layers",
          text(run.layers) + " layers, but only " + text(rest) + " of the model's " +
              text(findings.plan.layers) + " are left");
      counted = false;
    } else {
      rest -= counted ? run.layers : 0;
    }
    VerbRun verbs{.layers = run.layers, .choice = &run.choice, .parts = {}};
    const auto& [parts, alike] = parts_of_run(findings, stacks, run, first);
    first += counted ? run.layers : 0;
    if (counted && run.layers > alike) {
      findings.say(
          here + ".layers",
          text(run.layers) + " layers, of which only the first " + text(alike) +
              " have the parts " + joined(parts, ", then ") +
              ": the others are a run of their own");
      checked.sound = false;
    }
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const bool there = run.choice.size() == parts.size() && run.choice[p].part == parts[p];
      if (!there) {
        findings.say(here + ".parts", "the parts of a layer are " + joined(parts, ", then "));
        checked.sound = false;
        break;
      }
      const PartChoice& choice = run.choice[p];
      checked.sound &= findings.known(path_to(here + ".parts", p) + ".strategy", [&] {
        verbs.parts.push_back(strategy(kind_of(choice.part), choice.strategy).verb);
      });
    }
    verbs.whole = made_again_whole(run.choice);
    if (!verbs.whole && std::ranges::any_of(run.choice, &PartChoice::with_layer)) {
      findings.say(
          here + ".parts",
          "some parts are recomputed with their layer, some are not: a layer is recomputed as a "
          "whole, or each part by its own level");
    }
    checked.verbs.push_back(std::move(verbs));
  }
  if (counted && rest != 0) {
    findings.say(
        path,
        "its layers add up to " + text(findings.plan.layers - rest) + ", the model has " +
            text(findings.plan.layers));
  }
  checked.sound &= counted && rest == 0;
  return checked;
}

}  // namespace

void check_programs(Findings& findings) {
  const std::vector<Stack> stacks =
      findings.model ? findings.model->stacks() : std::vector<Stack>();
  for (const auto& [name, runs] : findings.plan.programs) {
    findings.programs[name] = check_program(findings, stacks, path_to("programs", name), runs);
  }
}

}  // namespace paradyse::check
