// paradyse export: a checkpoint as a Hugging Face folder.
#include "src/run/train/export.h"

#include <string>

#include <fmt/format.h>

#include "paradyse/plan/dtype.h"
#include "src/cli/commands.h"
#include "src/cli/progress.h"

namespace paradyse::cli {
namespace {

struct ExportOptions {
  std::string from;
  std::string to;
  std::string model;
  std::string dtype;
  bool merge = false;
};

int run_export(const ExportOptions& options, const Common& common) {
  if (!options.dtype.empty()) {
    dtype_option(options.dtype);
  }
  const Exported exported = export_checkpoint(
      options.from,
      options.to,
      {.model = options.model, .dtype = options.dtype, .merged = options.merge});
  if (common.json) {
    print_json(
        {{"folder", options.to},
         {"checkpoint", exported.checkpoint.string()},
         {"step", exported.step},
         {"dtype", exported.dtype},
         {"adapters", exported.adapters},
         {"notes", exported.notes}});
    return kOk;
  }
  for (const std::string& note : exported.notes) {
    say(note);
  }
  fmt::print(
      "{}: a {} folder of step {} ({}), in {}\n",
      options.to,
      exported.adapters ? "PEFT" : "Hugging Face",
      exported.step,
      exported.checkpoint.string(),
      exported.dtype);
  return kOk;
}

}  // namespace

void add_export(CLI::App& app, Common& common) {
  auto [command, options] = add_command<ExportOptions>(
      app, common, "export", "Write a checkpoint as a Hugging Face folder", run_export);
  command
      ->add_option(
          "from",
          options->from,
          "Run folder (its newest checkpoint), or a folder in its checkpoints/")
      ->option_text("RUN_OR_CHECKPOINT")
      ->required();
  command->add_option("to", options->to, "New or empty folder")->option_text("OUT")->required();
  command->add_option(
      "--model", options->model, "Where the run's model is now (default: where the run found it)");
  command->add_option(
      "--dtype",
      options->dtype,
      "Data type of the weights (default: the run's output.dtype); if it is not that of training, "
      "weights are rounded from the float32 master weights");
  command->add_flag(
      "--merge",
      options->merge,
      "Of a run with LoRA adapters: write the base model with the adapters merged into it, not the "
      "adapters alone");
}

}  // namespace paradyse::cli
