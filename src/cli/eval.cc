// paradyse eval: the loss of a model on documents.
#include <cmath>

#include <fmt/format.h>

#include "paradyse/run/train.h"
#include "src/cli/commands.h"
#include "src/cli/inputs.h"
#include "src/cli/progress.h"
#include "src/cli/run_options.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/json_text.h"
#include "src/run/data/data_report.h"

namespace paradyse::cli {
namespace {

// Each with its mean loss; null: none of its labels counts.
Json json_of(const std::vector<DocumentLoss>& documents) {
  Json list = Json::array();
  for (const DocumentLoss& one : documents) {
    list.push_back(Json{
        {"name", one.name},
        {"tokens", one.tokens},
        {"labels", one.labels},
        {"loss",
         one.labels == 0 ? Json(nullptr) : Json(one.loss_sum / static_cast<double>(one.labels))}});
  }
  return list;
}

int eval_on(Backend& backend, const LoadedConfig& config, bool per_document, const Common& common) {
  Progress progress;
  const EvalResult result =
      evaluate(config, backend, say, progress.hook(common.json), per_document);
  progress.finish();
  if (!backend.leads()) {
    return kOk;
  }
  const ModelWords& words = result.words;
  const bool finite = std::isfinite(result.loss);
  const Json documents = json_of(result.per_document);
  if (per_document && !common.json) {  // a line each: there may be many
    for (const Json& one : documents) {
      fmt::print("{}\n", json_line(one));
    }
  }
  if (common.json) {
    Json json = {
        {"loss", finite ? Json(result.loss) : Json(nullptr)},
        {"perplexity", finite && words.perplexity ? Json(std::exp(result.loss)) : Json(nullptr)},
        {"documents", result.documents},
        {"predicted_tokens", result.predicted_tokens},
        {"seconds", result.seconds},
        {"peak_bytes", result.peak_bytes},
        {"model", cli::json_of(result.model)},
        {"data", json_of(result.data)}};
    if (per_document) {
      json["per_document"] = documents;
    }
    print_json(json);
  } else if (result.predicted_tokens == 0) {
    fmt::print("no loss: none of {} {} has a label that counts\n", result.documents, words.items);
  } else {
    const std::string perplexity =
        words.perplexity ? fmt::format(" (perplexity {:.3f})", std::exp(result.loss)) : "";
    fmt::print(
        "loss {:.6f}{} over {} {} of {} {}, {:.1f} s, peak {} on the rank with the highest peak\n",
        result.loss,
        perplexity,
        result.predicted_tokens,
        words.scored,
        result.documents,
        words.items,
        result.seconds,
        bytes_text(result.peak_bytes));
  }
  return kOk;
}

struct EvalOptions {
  RunOptions run;
  bool per_document = false;
};

int run_eval(const EvalOptions& options, const Common& common) {
  const LoadedConfig config = load(options.run);
  if (options.run.print_config) {
    print_config(config, common);
    return kOk;
  }
  return on_backend(
      backend_options(config.config, options.run),
      given_by(config),
      [&](const std::shared_ptr<Backend>& backend) {
        return eval_on(*backend, config, options.per_document, common);
      });
}

}  // namespace

void add_eval(CLI::App& app, Common& common) {
  auto [command, options] = add_command<EvalOptions>(
      app,
      common,
      "eval",
      "Compute a model's mean loss per predicted token over documents",
      run_eval);
  add_run_options(*command, options->run);
  command->add_flag(
      "--per-document",
      options->per_document,
      "Also print the loss of each document, as a line of JSON (with --json: a list)");
}

}  // namespace paradyse::cli
