#include "src/plan/plan/programs.h"

#include "src/plan/base/text_match.h"

namespace paradyse {

std::string name(const LayerRuns& program) {
  return joined(program, "; ", [&](const LayerRun& run) {
    return (program.size() == 1 ? "" : std::to_string(run.layers) + " x ") + name(run.choice);
  });
}

std::string use(Plan& plan, const LayerRuns& program) {
  std::string key = name(program);
  plan.programs[key] = program;
  return key;
}

}  // namespace paradyse
