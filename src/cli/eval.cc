// paradyse eval: the loss of a model on documents.
#include <cmath>
#include <cstdio>

#include "paradyse/run/train.h"
#include "src/cli/commands.h"
#include "src/cli/interrupt.h"
#include "src/cli/run_options.h"
#include "src/plan/base/bytes_text.h"

namespace paradyse::cli {
namespace {

int eval_on(Backend& backend, const LoadedConfig& config, const Common& common) {
  const std::atomic<bool>& stop = catch_interrupts();
  const EvalResult result = evaluate(config, &stop, backend);
  if (!backend.leads()) {
    return kOk;
  }
  if (common.json) {
    print_json(
        {{"loss", std::isfinite(result.loss) ? Json(result.loss) : Json(nullptr)},
         {"perplexity", std::isfinite(result.loss) ? Json(std::exp(result.loss)) : Json(nullptr)},
         {"documents", result.documents},
         {"predicted_tokens", result.predicted_tokens},
         {"seconds", result.seconds},
         {"peak_bytes", result.peak_bytes},
         {"interrupted", stop.load()}});
  } else if (result.predicted_tokens == 0) {
    std::printf(
        "no loss: no token of %lld documents is scored against a label that counts%s\n",
        static_cast<long long>(result.documents),
        stop.load() ? " (interrupted)" : "");
  } else {
    std::printf(
        "loss %.6f (perplexity %.3f) over %lld predicted tokens of %lld documents, %.1f s, peak %s "
        "on "
        "the fullest rank%s\n",
        result.loss,
        std::exp(result.loss),
        static_cast<long long>(result.predicted_tokens),
        static_cast<long long>(result.documents),
        result.seconds,
        bytes_text(result.peak_bytes).c_str(),
        stop.load() ? " (interrupted)" : "");
  }
  return stop.load() ? kInterrupted : kOk;
}

int run_eval(const RunOptions& options, const Common& common) {
  const LoadedConfig config = load(options);
  if (options.print_config) {
    print_config(config, common);
    return kOk;
  }
  return on_backend(
      backend_options(config.config),
      config.config.parallel.deadline_seconds,
      [&](const std::shared_ptr<Backend>& backend) { return eval_on(*backend, config, common); });
}

}  // namespace

void add_eval(CLI::App& app, Common& common) {
  auto [command, options] = add_command<RunOptions>(
      app, common, "eval", "Mean loss per predicted token of a model over documents", run_eval);
  add_run_options(*command, *options);
}

}  // namespace paradyse::cli
