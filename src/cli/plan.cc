// paradyse plan check: is this plan sound, does it fit, and what does each part do.
#include "paradyse/plan/plan.h"

#include <cstdio>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/cli/commands.h"
#include "src/cli/inputs.h"
#include "src/plan/program/bodies.h"

namespace paradyse::cli {
namespace {

struct CheckOptions {
  std::string file;
  std::string model;
  std::string memory_per_rank;
  std::string dtype = "float32";
  bool forward_only = false;
  bool explain = false;
};

// Layers in a row that run one program.
struct Explained {
  std::string where;  // "micro-batch 0, group 1 (ranks 0 1, documents 3), layers 0-2, attention"
  Json place;
  std::string text;
};

std::string numbers(const std::vector<std::int64_t>& values) {
  constexpr std::size_t kMost = 8;
  std::string list;
  for (std::size_t i = 0; i < values.size() && i < kMost; ++i) {
    list += (i == 0 ? "" : " ") + std::to_string(values[i]);
  }
  return values.size() > kMost ? fmt::format("{} ... ({} in all)", list, values.size()) : list;
}

// The programs of every group, each distinct one of a group once.
std::vector<Explained> explained(const Plan& plan, const ModelShape& model, bool training) {
  std::vector<Explained> all;
  for (std::size_t m = 0; m < plan.micro_batches.size(); ++m) {
    for (std::size_t g = 0; g < plan.micro_batches[m].groups.size(); ++g) {
      const PlanGroup& group = plan.micro_batches[m].groups[g];
      const Task task{
          .model = &model,
          .tokens = token_layout(plan, group, model.causal),
          .domain = plan.weight_domain};
      const Timeline parts = timeline(task, choices(plan.programs.at(group.program)), training);
      const std::vector<std::int64_t> ranks(group.ranks.begin(), group.ranks.end());
      for (const auto& [body, alike] : bodies(parts)) {
        const Program& program = body->program;
        std::vector<std::int64_t> its;
        for (const std::size_t part : alike) {
          its.push_back(parts[part].layer);
        }
        const bool of_layers = its.front() >= 0;
        std::string where = fmt::format(
            "micro-batch {}, group {} (ranks {}{}; documents {}), {} {}",
            m,
            g,
            numbers(ranks),
            group.shares.empty() ? "" : fmt::format(" by shares {}", fmt::join(group.shares, " ")),
            group.documents.empty() ? "none" : numbers(group.documents),
            program.part,
            program.strategy);
        if (of_layers) {
          where += ", layers " + numbers(its);
        }
        all.push_back(
            {.where = std::move(where),
             .place =
                 {{"micro_batch", m},
                  {"group", g},
                  {"part", program.part},
                  {"strategy", program.strategy},
                  {"layers", of_layers ? Json(its) : Json::array()}},
             .text = explain(program)});
      }
    }
  }
  return all;
}

// "4 ranks (weight domain 4), 3 documents of 71 tokens, 2 micro-batches, 5 groups".
std::string summary(const Plan& plan) {
  std::int64_t tokens = 0;
  for (const std::int64_t length : plan.lengths) {
    tokens += length;
  }
  std::size_t groups = 0;
  for (const PlanMicroBatch& micro_batch : plan.micro_batches) {
    groups += micro_batch.groups.size();
  }
  return fmt::format(
      "model {} of {} layers; {} ranks, weight domain {}; {} documents of {} tokens; {} programs, "
      "{} micro-batches, {} groups",
      plan.model_name,
      plan.layers,
      plan.ranks,
      plan.weight_domain,
      plan.lengths.size(),
      tokens,
      plan.programs.size(),
      plan.micro_batches.size(),
      groups);
}

int run_plan_check(const CheckOptions& options, const Common& common) {
  const std::int64_t memory = memory_limit(options.memory_per_rank);
  expect_one_of("--dtype", options.dtype, {"float32", "float64", "bfloat16", "float16"});
  if (options.model.empty() && (memory > 0 || options.explain)) {
    throw std::invalid_argument(
        std::string(memory > 0 ? "--memory-per-rank" : "--explain") +
        " needs --model: sizes are the model's; give its folder or TOML file");
  }
  const Plan plan = read_plan(options.file);
  std::optional<ModelShape> model;
  CheckContext context{.precision = precision_of(options.dtype), .training = !options.forward_only};
  if (!options.model.empty()) {
    model = reading([&] { return open_model(options.model); }).shape;
    context.model = &*model;
  }
  if (memory > 0) {
    context.memory_per_rank = memory;
  }
  const std::vector<std::string> found = problems(plan, context);
  std::vector<Explained> programs;
  if (options.explain && found.empty()) {
    programs = explained(plan, *model, context.training);
  }
  if (common.json) {
    Json json = {
        {"ok", found.empty()},
        {"problems", found},
        {"hash", hash(plan)},
        {"summary", summary(plan)},
        {"ranks", plan.ranks},
        {"documents", plan.lengths.size()},
        {"micro_batches", plan.micro_batches.size()}};
    if (options.explain) {
      json["programs"] = Json::array();
      for (Explained& one : programs) {
        one.place["text"] = one.text;
        json["programs"].push_back(std::move(one.place));
      }
    }
    print_json(json);
  } else if (found.empty()) {
    fmt::print("ok {}\n{}\n", hash(plan), summary(plan));
    if (memory == 0) {
      fmt::print(
          "not checked: {}\n",
          options.model.empty() ? "the model's sizes (--model) and memory"
                                : "memory (--memory-per-rank)");
    }
    for (const Explained& one : programs) {
      fmt::print("\n{}\n{}", one.where, one.text);
    }
  } else {
    for (const std::string& problem : found) {
      fmt::print("{}: {}\n", options.file, problem);
    }
    fmt::print("{} problem{} found\n", found.size(), found.size() == 1 ? "" : "s");
  }
  return found.empty() ? kOk : kFailed;
}

}  // namespace

void add_plan(CLI::App& app, Common& common) {
  CLI::App* plan = app.add_subcommand("plan", "Make and check plans");
  plan->require_subcommand(1);
  auto [command, options] = add_command<CheckOptions>(
      *plan, common, "check", "Say everything that is wrong with a plan file", run_plan_check);
  command->add_option("FILE", options->file, "Plan file")->required();
  command->add_option(
      "--model",
      options->model,
      "Model folder or TOML file that the plan is for; proves equal collectives too");
  command->add_option(
      "--memory-per-rank",
      options->memory_per_rank,
      "Check that a step fits, as in 512MiB; needs --model");
  command
      ->add_option("--dtype", options->dtype, "Of that step: float32, float64, bfloat16 or float16")
      ->capture_default_str();
  command->add_flag(
      "--forward-only",
      options->forward_only,
      "That step is of evaluation: no backward pass, weights alone stay");
  command->add_flag(
      "--explain", options->explain, "Print the ops of each part on each group; needs --model");
  add_plan_layers(*plan, common);
}

}  // namespace paradyse::cli
