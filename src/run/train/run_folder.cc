#include "src/run/train/run_folder.h"

#include <chrono>
#include <cmath>
#include <ctime>
#include <stdexcept>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace paradyse {
namespace fs = std::filesystem;

namespace {

void write_file(const fs::path& file, const std::string& text) {
  std::ofstream out(file);
  out << text;
  out.close();
  if (!out) {
    throw std::runtime_error("cannot write " + file.string() + ": is the disk full?");
  }
}

nlohmann::json number(double value) {  // JSON has no NaN
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

}  // namespace

RunFolder::RunFolder(const LoadedConfig& config) {
  const fs::path parent = config.config.output.folder;
  std::error_code error;
  fs::create_directories(parent, error);
  if (error) {
    throw std::runtime_error(
        "cannot make the folder " + parent.string() + ": " + error.message() +
        "; choose another with output.folder");
  }
  if (!config.config.output.name.empty()) {
    path_ = parent / config.config.output.name;
    if (!fs::create_directory(path_, error)) {
      throw std::runtime_error(
          "the run folder " + path_.string() +
          (error ? " cannot be made: " + error.message() : " is there already") +
          "; choose another name with output.name (nothing is overwritten)");
    }
  } else {
    const std::time_t now = std::time(nullptr);
    const std::string stem = fmt::format("{:%Y-%m-%d_%H%M%S}", fmt::localtime(now));
    for (int i = 0;; ++i) {
      path_ = parent / (i == 0 ? stem : fmt::format("{}-{}", stem, i));
      if (fs::create_directory(path_, error)) {
        break;
      }
      if (error) {
        throw std::runtime_error(
            "the run folder " + path_.string() + " cannot be made: " + error.message());
      }
    }
  }
  fs::create_directory(path_ / "plans");
  write_file(path_ / "config.toml", to_toml(config));
  metrics_.open(path_ / "metrics.jsonl");
}

void RunFolder::write_plan(const Plan& plan, std::int64_t step) {
  write_file(path_ / "plans" / fmt::format("step-{:05}.json", step), to_json(plan));
}

void RunFolder::write_step(const StepReport& report) {
  const nlohmann::json line = {
      {"step", report.step},
      {"loss", number(report.loss)},
      {"learning_rate", report.learning_rate},
      {"gradient_norm", number(report.gradient_norm)},
      {"loss_scale", report.loss_scale},
      {"documents", report.documents},
      {"tokens", report.tokens},
      {"seconds", report.seconds},
      {"tokens_per_s", static_cast<double>(report.tokens) / report.seconds},
      {"predicted_seconds", report.predicted_seconds},
      {"planning_seconds", report.planning_seconds},
      {"peak_bytes", report.peak_bytes},
      {"predicted_peak_bytes", report.predicted_peak_bytes},
      {"micro_batches", report.micro_batches},
      {"plan_sha256", report.plan_sha256}};
  metrics_ << line.dump() << "\n" << std::flush;
  if (!metrics_) {
    throw std::runtime_error(
        "cannot write " + (path_ / "metrics.jsonl").string() + ": is the disk full?");
  }
}

void RunFolder::write_summary(const TrainSummary& summary) {
  const nlohmann::json json = {
      {"steps", summary.steps},
      {"interrupted", summary.interrupted},
      {"first_loss", number(summary.first_loss)},
      {"last_loss", number(summary.last_loss)},
      {"eval_loss", number(summary.eval_loss)},
      {"tokens", summary.tokens},
      {"seconds", summary.seconds},
      {"tokens_per_s",
       summary.seconds > 0 ? static_cast<double>(summary.tokens) / summary.seconds : 0},
      {"peak_bytes", summary.peak_bytes},
      {"steps_by_strategy", summary.steps_by_strategy},
      {"data",
       {{"documents", summary.data.documents},
        {"tokens", summary.data.tokens},
        {"cut", summary.data.cut},
        {"skipped_long", summary.data.skipped_long},
        {"skipped_short", summary.data.skipped_short}}}};
  write_file(path_ / "summary.json", json.dump(2) + "\n");
}

}  // namespace paradyse
