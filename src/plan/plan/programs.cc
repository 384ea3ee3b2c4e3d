#include "src/plan/plan/programs.h"

namespace paradyse {

std::string name(const LayerRuns& program) {
  std::string text;
  for (const LayerRun& run : program) {
    text += text.empty() ? "" : "; ";
    text += program.size() == 1 ? "" : std::to_string(run.layers) + " x ";
    text += name(run.choice);
  }
  return text;
}

std::string use(Plan& plan, const LayerRuns& program) {
  std::string key = name(program);
  plan.programs[key] = program;
  return key;
}

}  // namespace paradyse
