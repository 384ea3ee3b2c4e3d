// paradyse generate: what a small model would write on.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/cli/commands.h"
#include "src/cli/inputs.h"
#include "src/cli/progress.h"
#include "src/cli/tell.h"
#include "src/run/check/check_case.h"
#include "src/run/check/continuation.h"
#include "src/run/data/tokenizer_files.h"

namespace paradyse::cli {
namespace {

struct GenerateOptions {
  std::string model;
  std::string prompt;
  std::vector<std::int64_t> tokens;
  std::int64_t max_new_tokens = 200;
  double temperature = 0.8;
  std::int64_t top_k = 0;
  double top_p = 1;
  std::uint64_t seed = 1;
};

// The tokens that --prompt or --tokens say.
std::vector<std::int32_t> prompt_of(
    const GenerateOptions& options, const Model& model, const std::string& tokenizer) {
  if (options.prompt.empty() == options.tokens.empty()) {
    throw std::invalid_argument("generate needs exactly one of --prompt TEXT and --tokens IDS");
  }
  std::vector<std::int32_t> prompt;
  if (options.tokens.empty()) {
    if (!tokenizer.empty() || model.vocab() < 256) {
      throw std::invalid_argument(fmt::format(
          "--prompt: the tokens of --model {} are not bytes ({}), and this command runs no "
          "tokenizer; give the ids of the prompt with --tokens (paradyse-data encode makes them)",
          options.model,
          tokenizer.empty() ? fmt::format("its vocabulary has {}", model.vocab()) : tokenizer));
    }
    for (const char letter : options.prompt) {
      prompt.push_back(static_cast<unsigned char>(letter));
    }
    return prompt;
  }
  for (const std::int64_t id : options.tokens) {
    if (id >= model.vocab()) {
      throw std::invalid_argument(fmt::format(
          "--tokens: {} is no id of --model {}, which has 0 to {}",
          id,
          options.model,
          model.vocab() - 1));
    }
    prompt.push_back(static_cast<std::int32_t>(id));
  }
  return prompt;
}

int run_generate(const GenerateOptions& options, const Common& common) {
  const ModelInput model = open_language_model_input(options.model, false, common.json);
  const Model& trained = model.folder.model;
  const std::filesystem::path& base = model.folder.path;  // of adapters, which have no tokenizer
  const bool folder = std::filesystem::is_directory(base);
  const std::string tokenizer = folder ? tokenizer_file(base) : "";
  const std::vector<std::int32_t> prompt = prompt_of(options, trained, tokenizer);
  const std::int64_t limit = trained.limits.longest.tokens;
  std::optional<Waiting> waiting(std::in_place, "writing", common.json);
  const std::vector<std::int32_t> written = continuation(
      trained,
      whole_weights(
          trained, [&](Parameters& p) { model.weights.fill(p); }, Dtype::float32),
      {.prompt = prompt,
       .tokens = options.max_new_tokens,
       .temperature = options.temperature,
       .top_k = options.top_k,
       .top_p = options.top_p,
       .seed = options.seed,
       .window = limit,
       .end_id = tokenizer.empty() ? std::nullopt : end_id_of(base)});
  waiting.reset();
  const std::int64_t seen = std::ssize(prompt) + std::ssize(written) - 1;  // by the last token
  if (limit > 0 && seen > limit) {
    tell(
        "paradyse: note: the model has {} positions: for the last token it saw the last {} of {}; "
        "give a shorter prompt, or fewer --max-new-tokens\n",
        limit,
        limit,
        seen);
  }
  const bool bytes = options.tokens.empty();
  if (common.json) {
    print_json(
        {{"prompt", bytes ? Json(options.prompt) : Json(nullptr)},
         {"prompt_tokens", prompt},
         {"text", bytes ? Json(text_of_bytes(written)) : Json(nullptr)},
         {"tokens", written},
         {"temperature", options.temperature},
         {"top_k", options.top_k},
         {"top_p", options.top_p},
         {"seed", options.seed},
         {"model", cli::json_of(model.weights)}});
  } else if (bytes) {
    fmt::print("{}{}\n", options.prompt, text_of_bytes(written));
  } else {
    fmt::print("{}\n", fmt::join(written, " "));
  }
  return kOk;
}

}  // namespace

void add_generate(CLI::App& app, Common& common) {
  auto [command, options] = add_command<GenerateOptions>(
      app, common, "generate", "Continue a text, or token ids, with a small model", run_generate);
  command->add_option("--model", options->model, "Model folder, as runs/.../model")->required();
  command->add_option(
      "--prompt", options->prompt, "Text to continue, with a model whose tokens are bytes");
  command
      ->add_option(
          "--tokens",
          options->tokens,
          "Token ids to continue, for any model; the new ids are printed")
      ->option_text("ID ...")
      ->check(whole_numbers(0));
  command
      ->add_option(
          "--max-new-tokens",
          options->max_new_tokens,
          "Number of tokens to generate; fewer where the tokenizer's end-of-text token comes. Each "
          "sees all before it, up to the model's positions")
      ->transform(whole_numbers(1))
      ->capture_default_str();
  command
      ->add_option(
          "--temperature",
          options->temperature,
          "Sampling temperature; 0: greedy, always the most likely token")
      ->check(numbers(0))
      ->capture_default_str();
  command
      ->add_option(
          "--top-k", options->top_k, "Sample from this many of the most likely tokens; 0: from all")
      ->check(whole_numbers(0))
      ->capture_default_str();
  command
      ->add_option(
          "--top-p",
          options->top_p,
          "Sample from the fewest most likely tokens that have this probability together; 0: "
          "from the most likely alone")
      ->check(numbers(0, 1))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Random seed")
      ->check(whole_numbers(0))
      ->capture_default_str();
}

}  // namespace paradyse::cli
