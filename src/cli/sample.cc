// paradyse sample: what a small byte-level model would write on.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "src/cli/commands.h"
#include "src/cli/inputs.h"
#include "src/cli/progress.h"
#include "src/run/check/check_case.h"
#include "src/run/check/continuation.h"
#include "src/run/data/tokenizer_files.h"

namespace paradyse::cli {
namespace {

struct SampleOptions {
  std::string model;
  std::string prompt = "#include <";
  std::int64_t tokens = 200;
  double temperature = 0.8;
  std::uint64_t seed = 1;
};

constexpr std::int64_t kWindow = 512;  // tokens: each is as costly as all before it

int run_sample(const SampleOptions& options, const Common& common) {
  const ModelInput model = open_language_model_input(options.model, false, common.json);
  const Model& trained = model.folder.model;
  const std::string tokenizer =
      std::filesystem::is_directory(options.model) ? tokenizer_file(options.model) : "";
  if (!tokenizer.empty() || trained.vocab() < 256) {
    throw std::invalid_argument(fmt::format(
        "--model {}: the tokens of this model are not bytes ({}), and this command runs no "
        "tokenizer; sample from it with Transformers, which reads the folder",
        options.model,
        tokenizer.empty() ? fmt::format("its vocabulary has {}", trained.vocab()) : tokenizer));
  }
  std::vector<std::int32_t> prompt;
  for (const char letter : options.prompt) {
    prompt.push_back(static_cast<unsigned char>(letter));
  }
  const std::int64_t limit = trained.limits.longest.tokens;
  std::optional<Waiting> waiting(std::in_place, "writing", common.json);
  const std::vector<std::int32_t> written = continuation(
      trained,
      whole_weights(
          trained, [&](Parameters& p) { model.weights.fill(p); }, Dtype::float32),
      {.prompt = prompt,
       .tokens = options.tokens,
       .temperature = options.temperature,
       .seed = options.seed,
       .window = limit == 0 ? kWindow : std::min(kWindow, limit)});
  waiting.reset();
  const std::string text = text_of_bytes(written);
  if (common.json) {
    print_json(
        {{"prompt", options.prompt},
         {"text", text},
         {"tokens", written},
         {"temperature", options.temperature},
         {"seed", options.seed},
         {"model", cli::json_of(model.weights)}});
  } else {
    fmt::print("{}{}\n", options.prompt, text);
  }
  return kOk;
}

}  // namespace

void add_sample(CLI::App& app, Common& common) {
  auto [command, options] = add_command<SampleOptions>(
      app, common, "sample", "Generate text with a small model whose tokens are bytes", run_sample);
  command->add_option("--model", options->model, "Model folder, as runs/.../model")->required();
  command->add_option("--prompt", options->prompt, "Text to continue")->capture_default_str();
  command->add_option("--tokens", options->tokens, "Number of bytes to generate")
      ->check(whole_numbers(1))
      ->capture_default_str();
  command
      ->add_option(
          "--temperature",
          options->temperature,
          "Sampling temperature; 0: always the most likely byte")
      ->check(numbers(0))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Random seed")
      ->check(whole_numbers(0))
      ->capture_default_str();
}

}  // namespace paradyse::cli
