#include "src/plan/plan/explain.h"

#include "src/plan/plan/group_timeline.h"
#include "src/plan/program/bodies.h"

namespace paradyse {

std::vector<ExplainedProgram> explained_programs(
    const Plan& plan, const Model& model, bool training) {
  const std::vector<bool> needed = model.needed();
  std::vector<ExplainedProgram> all;
  for (std::size_t m = 0; m < plan.micro_batches.size(); ++m) {
    for (std::size_t g = 0; g < plan.micro_batches[m].groups.size(); ++g) {
      const PlanGroup& group = plan.micro_batches[m].groups[g];
      const Timeline parts = group_timeline(plan, group, model, training).parts;
      for (const auto& [body, alike] : bodies(parts)) {
        ExplainedProgram& one = all.emplace_back();
        one.micro_batch = m;
        one.group = g;
        one.part = body->program.part;
        one.strategy = body->program.strategy;
        for (const std::size_t part : alike) {
          if (parts[part].layer >= 0) {
            one.layers.push_back(parts[part].layer);
          }
        }
        one.text = explain(body->program);
      }
      for (std::size_t i = 0; i < needed.size(); ++i) {
        if (!needed[i]) {
          all.push_back(
              {.micro_batch = m,
               .group = g,
               .part = model.parts[i].part->name,
               .strategy = "left out",
               .layers = {model.parts[i].layer},
               .text = "no later op reads its result\n"});
        }
      }
    }
  }
  return all;
}

std::string note_of_tiles(const Plan& plan, const Tiles& of_device) {
  if (plan.tiles != Tiles{} || of_device == Tiles{}) {
    return "";
  }
  return "the plan has no \"tiles\", so those of a CPU are used; for a GPU they are \"tiles\": "
         "{\"vocabulary\": " +
         std::to_string(of_device.vocabulary) +
         ", \"logits\": " + std::to_string(of_device.logits) +
         ", \"products\": " + std::to_string(of_device.products) + "}, as in a plan made for GPUs";
}

}  // namespace paradyse
