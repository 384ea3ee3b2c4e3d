// From what a plan says of the layers to the scheduled parts of a micro-batch.
#include <stdexcept>

#include "paradyse/plan/strategy.h"

namespace paradyse {
namespace {

using Body = std::shared_ptr<const ScheduledPart::Body>;

Body body(Program program, Recompute level, bool keep, bool offload) {
  apply(level, program);
  Schedule order = schedule(program, keep, keep && offload);
  return std::make_shared<ScheduledPart::Body>(
      ScheduledPart::Body{.program = std::move(program), .schedule = std::move(order)});
}

}  // namespace

ScheduledPart scheduled_part(const Task& task, const PartChoice& choice, bool keep) {
  if (const std::vector<Misfit> wrong = misfits(task, choice); !wrong.empty()) {
    const Misfit& first = wrong.front();
    throw std::invalid_argument(
        choice.part + ": " + (first.option.empty() ? "'" + choice.strategy + "' " : "") +
        first.why);
  }
  Task run = task;
  run.choice = choice;
  run.dropout = keep;
  return {
      .layer = 0,
      .body = body(
          strategy(choice.part, choice.strategy).build(run),
          choice.recompute,
          keep,
          choice.offload)};
}

Timeline timeline(const Task& task, std::span<const LayerChoice> layers, bool keep) {
  if (static_cast<std::int64_t>(layers.size()) != task.model->layers) {
    throw std::invalid_argument(
        "a plan for " + std::to_string(layers.size()) + " layers does not fit a model of " +
        std::to_string(task.model->layers));
  }
  Task run = task;
  run.dropout = keep;
  Timeline parts;
  const auto add = [&](std::int64_t layer, Body made) {
    const auto weights = static_cast<int>(parts.size());  // parts run in the order of model_parts()
    parts.push_back({.layer = layer, .weights = weights, .body = std::move(made)});
  };
  const auto add_end = [&](Program program) {
    add(-1, body(std::move(program), Recompute::none, keep, false));
  };
  add_end(embedding_program(run));
  // Layers are alike: each distinct choice is built once.
  std::map<PartChoice, Body> built;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    for (const std::string& part : layer_parts()) {
      const PartChoice& choice = part_of(layers[l], part);
      Body& made = built[choice];
      if (!made) {
        made = scheduled_part(task, choice, keep).body;
      }
      add(static_cast<std::int64_t>(l), made);
    }
  }
  if (task.model->masked_lm) {
    add_end(transform_program(run));
  }
  add_end(head_program(run, keep));
  return linked(std::move(parts));
}

}  // namespace paradyse
