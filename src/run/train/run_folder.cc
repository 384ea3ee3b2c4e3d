#include "src/run/train/run_folder.h"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <ctime>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <unistd.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/json_text.h"
#include "src/plan/base/text_match.h"
#include "src/run/train/checkpoint.h"
#include "src/run/train/files.h"
#include "src/run/train/step_plans.h"
#include "src/run/train/summary_json.h"
#include "src/run/weights/adapters.h"

namespace paradyse {
namespace fs = std::filesystem;

namespace {

constexpr const char* kAdapter = "adapter";
constexpr const char* kAdapterConfig = "adapter_config.json";  // PEFT's

nlohmann::json number(double value) {  // JSON has no NaN
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

// To six digits: a line is to stay short.
double rounded(double value) { return std::stod(fmt::format("{:.6g}", value)); }

nlohmann::json to_json(const GroupReport& group) {
  return {
      {"ranks", group.ranks},
      {"documents", group.documents},
      {"tokens", group.tokens},
      {"predicted", rounded(group.predicted_seconds)},
      {"seconds", rounded(group.seconds)}};
}

std::string taken(const fs::path& folder) {
  return "the run folder " + folder.string() +
         " exists already; choose another name with output.name (nothing is overwritten)";
}

// A link is not: it is somebody's.
bool is_empty_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(fs::symlink_status(path, error)) && fs::is_empty(path, error) && !error;
}

std::optional<ComparedStep> compared_of(const nlohmann::json& entry) {
  const auto strategy = entry.find("compared_strategy");
  if (strategy == entry.end()) {
    return std::nullopt;
  }
  const auto seconds = [&](const char* key) {
    const nlohmann::json& value = entry.at(key);
    return value.is_null() ? ComparedStep::kNone : value.get<double>();
  };
  return ComparedStep{
      .strategy = *strategy,
      .seconds = seconds("compared_seconds"),
      .predicted_seconds = seconds("compared_predicted_seconds"),
      .ours = seconds("seconds")};
}

// Null: nothing that was held out counts.
std::optional<double> eval_loss_of(const nlohmann::json& entry) {
  const auto loss = entry.find("eval_loss");
  if (loss == entry.end()) {
    return std::nullopt;
  }
  return loss->is_null() ? std::numeric_limits<double>::quiet_NaN() : loss->get<double>();
}

// A line of metrics.jsonl, as far as a summary wants it; none for half a line.
std::optional<StepReport> report_of(const std::string& line) {
  try {
    const nlohmann::json entry = json_in(line);
    const nlohmann::json& loss = entry.at("loss");
    return StepReport{
        .step = entry.at("step"),
        .loss = loss.is_null() ? std::numeric_limits<double>::quiet_NaN() : loss.get<double>(),
        .labels = entry.value("labels", std::int64_t{loss.is_null() ? 0 : 1}),
        .tokens = entry.at("tokens"),
        .seconds = entry.at("seconds"),
        .predicted_seconds = entry.at("predicted_seconds"),
        .late = entry.value("late", false),
        .skipped = entry.value("skipped", false),
        .peak_bytes = entry.at("peak_bytes"),
        .micro_batches = entry.at("micro_batches"),
        .idle = entry.value("idle", std::vector<double>()),
        .plan_sha256 = entry.at("plan_sha256"),
        .eval_loss = eval_loss_of(entry),
        .compared = compared_of(entry)};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

// The step of plans/step-00050.json; -1 for another file.
std::int64_t step_of_plan(const std::string& name) {
  long long step = -1;
  int read = 0;
  const bool plan = std::sscanf(name.c_str(), "step-%lld.json%n", &step, &read) == 1 &&
                    std::cmp_equal(read, name.size());
  return plan ? step : -1;
}

}  // namespace

std::map<std::size_t, bool> plans_were_late(
    const fs::path& run,
    std::int64_t step,
    const std::function<void(const std::string& line)>& note) {
  std::vector<fs::path> folders = {run / "plans"};
  for (const fs::directory_entry& entry : fs::directory_iterator(run)) {
    if (entry.path().filename().string().starts_with("undone-")) {
      folders.push_back(entry.path() / "plans");
    }
  }
  std::map<std::size_t, bool> late;
  for (const fs::path& folder : folders) {
    if (!fs::is_directory(folder)) {
      continue;
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      const std::int64_t of = step_of_plan(entry.path().filename().string());
      if (of <= step) {
        continue;
      }
      try {
        const std::string text = file_text(entry.path());
        late.emplace(
            idx(of - 1),
            plan_from_json(text, entry.path().string()).planner_name == StepPlans::kFallback);
      } catch (const std::exception& error) {
        note(fmt::format(
            "{}: whether that plan was late is not known, so step {} may get another",
            message_of(error),
            of));
      }
    }
  }
  return late;
}

std::string adapter_settings(const std::string& lora_path, const fs::path& run) {
  std::error_code error;
  const fs::path kept = run / kAdapter;
  return lora_path.empty() || !fs::exists(kept / kAdapterConfig, error) ? lora_path : kept.string();
}

bool RunFolder::is_begun(const fs::path& run) {
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(run, error)) ||
      fs::is_regular_file(run / "config.toml", error)) {
    return fs::is_regular_file(run / "config.toml", error);
  }
  if (fs::is_empty(run, error)) {  // there is nothing to move away
    return false;
  }
  for (fs::directory_iterator at(run, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const bool ours = name == "config.toml.partial" ||
                      (name == "plans" && fs::is_empty(at->path(), error) && !error);
    if (!ours) {
      return false;
    }
  }
  return !error;
}

void RunFolder::expect_name(const LoadedConfig& config) {
  const std::string& name = config.config.output.name;
  if (name.find('/') != std::string::npos || name == "." || name == "..") {
    throw std::invalid_argument(
        "output.name " + excerpt(name) +
        ": is no name of a folder in output.folder; give a name without '/', and the place with "
        "output.folder");
  }
}

void RunFolder::expect_room(const LoadedConfig& config, bool may_be_empty) {
  expect_name(config);
  const fs::path parent = config.config.output.folder;
  if (parent.empty()) {
    throw std::invalid_argument(
        "output.folder is empty: name a folder, or leave the key out for its default, runs");
  }
  if (const std::string why = why_no_file_in(parent, /*makes_folders=*/true); !why.empty()) {
    throw std::invalid_argument("output.folder: " + why);
  }
  const std::string& name = config.config.output.name;
  std::error_code error;
  if (!name.empty() && fs::exists(fs::symlink_status(parent / name, error)) &&
      !(may_be_empty && is_empty_folder(parent / name))) {
    throw std::invalid_argument(taken(parent / name));
  }
}

RunFolder::RunFolder(const LoadedConfig& config, bool may_be_empty) {
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
    if (!fs::create_directory(path_, error) &&
        (error || !may_be_empty || !is_empty_folder(path_))) {
      throw std::runtime_error(
          error ? "the run folder " + path_.string() + " cannot be made: " + error.message() +
                      "; choose another name with output.name"
                : taken(path_));
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
  lock();
  naming_complete(checkpoints(), [&] {
    fs::create_directory(path_ / "plans");
    replace_text(path_ / "config.toml", to_toml(config));
    if (const fs::path adapter = config.config.lora.path; !adapter.empty()) {
      fs::create_directory(path_ / kAdapter);
      write_durably(path_ / kAdapter / kAdapterConfig, file_text(adapter / kAdapterConfig));
    }
    append_text(path_ / "metrics.jsonl", "");
  });
  begin_events(config, 0);
}

RunFolder::RunFolder(fs::path run) : path_(std::move(run)) { lock(); }

RunFolder::~RunFolder() {
  if (lock_ >= 0) {
    ::close(lock_);
  }
}

// Until this program ends, however it does.
void RunFolder::lock() {
  lock_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_ < 0) {
    throw std::runtime_error(
        path_.string() + ": cannot be opened: " + std::generic_category().message(errno));
  }
  if (::flock(lock_, LOCK_EX | LOCK_NB) == 0) {
    return;
  }
  if (errno == EWOULDBLOCK) {
    throw std::runtime_error(
        path_.string() + ": another program is training in this folder; wait for it, or end it");
  }
  not_locked_ = fmt::format(
      "{} cannot be locked ({}): take care that no other program trains in this folder at the same "
      "time, since nothing would stop it",
      path_.string(),
      std::generic_category().message(errno));
}

RunFolder::Rewound RunFolder::rewind(std::int64_t step, const LoadedConfig& config) {
  Rewound rewound;
  const auto written_or_waiting = [&](const fs::path& written, const std::string& text) {
    try {
      write_durably(written, text);
    } catch (const std::runtime_error& error) {  // told with all that waits
      unwritten_.add_refused(error.what());
      unwritten_.put(written, text);
    }
  };
  const fs::path metrics = path_ / "metrics.jsonl";
  std::string head;
  std::string tail;
  const std::string waiting = unwritten_.take_back(metrics);
  std::istringstream lines((fs::exists(metrics) ? file_text(metrics, kMostMetrics) : "") + waiting);
  for (std::string line; std::getline(lines, line);) {
    const bool whole = !lines.eof();  // else its end is missing
    std::optional<StepReport> report = whole ? report_of(line) : std::nullopt;
    if (tail.empty() && report && report->step <= step) {
      head += line + "\n";
      rewound.reports.push_back(std::move(*report));
    } else {
      tail += line + (whole ? "\n" : "");
    }
  }
  fs::create_directories(path_ / "plans");
  std::vector<fs::path> plans;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_ / "plans")) {
    if (step_of_plan(entry.path().filename().string()) > step) {
      plans.push_back(entry.path());
    }
  }
  std::vector<fs::path> later;  // damaged, or not wanted
  for (const fs::path& checkpoint : checkpoints_in(checkpoints())) {
    if (step_of(checkpoint) > step) {
      later.push_back(checkpoint);
    }
  }
  if (!tail.empty() || !plans.empty() || !later.empty()) {
    rewound.put_aside = free_name(path_ / fmt::format("undone-{:06}", step));
    fs::create_directories(rewound.put_aside / "plans");
    written_or_waiting(rewound.put_aside / "metrics.jsonl", tail);
    for (const fs::path& plan : plans) {
      move_path(plan, rewound.put_aside / "plans" / plan.filename());
    }
    for (const fs::path& checkpoint : later) {
      fs::create_directory(rewound.put_aside / "checkpoints");
      move_path(checkpoint, rewound.put_aside / "checkpoints" / checkpoint.filename());
    }
    written_or_waiting(metrics, head);
  } else if (!waiting.empty()) {
    written_or_waiting(metrics, head);
  }
  const fs::path file = path_ / "config.toml";
  rewound.config_made = !fs::exists(file);
  if (rewound.config_made) {
    write_durably(file, to_toml(config));
  }
  const LoadedConfig before = [&] {
    try {
      return load_config(file, {});
    } catch (const std::invalid_argument& error) {  // it could be read when the run was resumed
      throw std::runtime_error(error.what());
    }
  }();
  const auto differs = [](const ConfigEntry& a, const ConfigEntry& b) {
    return a.value != b.value;
  };
  if (!std::equal(
          before.entries.begin(),
          before.entries.end(),
          config.entries.begin(),
          config.entries.end(),
          std::not_fn(differs))) {
    rewound.config_aside = free_name(path_ / fmt::format("config-until-{:06}.toml", step));
    write_durably(rewound.config_aside, file_text(file));
    write_durably(file, to_toml(config));
  }
  append_text(metrics, "");
  begin_events(config, step);
  return rewound;
}

void RunFolder::begin_events(const LoadedConfig& config, std::int64_t step) {
  if (config.config.output.tensorboard) {
    events_.emplace(path_, step);
    unwritten_.append(events_->path(), events_->head());
  }
}

void RunFolder::write_plan(const Plan& plan, std::int64_t step) {
  unwritten_.put(path_ / "plans" / fmt::format("step-{:05}.json", step), to_json(plan));
}

Plan RunFolder::read_plan(std::int64_t step) const {
  return paradyse::read_plan(path_ / "plans" / fmt::format("step-{:05}.json", step));
}

void RunFolder::write_step(const StepReport& report) {
  nlohmann::json line = {
      {"step", report.step},
      {"loss", number(report.loss)},
      {"labels", report.labels},
      {"learning_rate", report.learning_rate},
      {"gradient_norm", number(report.gradient_norm)},
      {"loss_scale", report.loss_scale},
      {"documents", report.documents},
      {"tokens", report.tokens},
      {"seconds", report.seconds},
      {"tokens_per_s", report.skipped ? 0 : static_cast<double>(report.tokens) / report.seconds},
      {"predicted_seconds", report.predicted_seconds},
      {"planning_seconds", report.planning_seconds},
      {"late", report.late},
      {"switching_seconds", report.switching_seconds},
      {"retries", report.retries},
      {"micro_batch_seconds", report.micro_batch_seconds},
      {"predicted_micro_batch_seconds", report.predicted_micro_batch_seconds},
      {"peak_bytes", report.peak_bytes},
      {"predicted_peak_bytes", report.predicted_peak_bytes},
      {"memory_per_rank", report.memory_per_rank},
      {"micro_batches", report.micro_batches},
      {"plan_sha256", report.plan_sha256}};
  for (const auto& [name, value] : report.allocator) {
    line[name] = value;
  }
  line["idle"] = nlohmann::json::array();
  for (const double share : report.idle) {
    line["idle"].push_back(rounded(share));
  }
  if (!report.groups.empty()) {
    nlohmann::json& groups = line["groups"] = nlohmann::json::array();
    for (const std::vector<GroupReport>& of_micro : report.groups) {
      nlohmann::json& all = groups.emplace_back(nlohmann::json::array());
      for (const GroupReport& group : of_micro) {
        all.push_back(to_json(group));
      }
    }
  }
  if (report.skipped) {
    line["skipped"] = true;
  }
  if (report.eval_loss) {
    line["eval_loss"] = number(*report.eval_loss);
    line["eval_seconds"] = report.eval_seconds;
  }
  if (report.compared) {
    line["compared_strategy"] = report.compared->strategy;
    line["compared_seconds"] = number(report.compared->seconds);
    line["compared_predicted_seconds"] = number(report.compared->predicted_seconds);
  }
  if (events_ && report.eval_loss) {
    unwritten_.append(
        events_->path(), EventFile::record(report.step, {{"eval/loss", *report.eval_loss}}));
  }
  if (events_) {
    unwritten_.append(
        events_->path(),
        EventFile::record(
            report.step,
            {{"train/loss", report.loss},
             {"train/learning_rate", report.learning_rate},
             {"train/gradient_norm", report.gradient_norm},
             {"speed/tokens_per_second",
              report.skipped ? 0 : static_cast<double>(report.tokens) / report.seconds},
             {"speed/step_seconds", report.seconds},
             {"speed/step_seconds_predicted", report.predicted_seconds},
             {"memory/peak_bytes", static_cast<double>(report.peak_bytes)},
             {"memory/peak_bytes_predicted", static_cast<double>(report.predicted_peak_bytes)}}));
  }
  unwritten_.append(path_ / "metrics.jsonl", line.dump() + "\n");
}

fs::path RunFolder::write_bad_step(std::int64_t step, const std::string& lines) {
  const fs::path file = path_ / "bad_steps" / fmt::format("step-{:05}.txt", step);
  unwritten_.put_in_folder(file, lines);
  return file;
}

void RunFolder::write_group_sizes(
    const std::vector<GroupSize>& sizes, std::int64_t memory_per_rank) {
  const nlohmann::ordered_json json = {
      {"memory_per_rank", memory_per_rank}, {"sizes", json_of(sizes)}};
  unwritten_.put(path_ / "group_sizes.json", json_text(json));
}

void RunFolder::sync_steps() const { sync_path(path_ / "metrics.jsonl"); }

fs::path RunFolder::trace_file(std::int64_t step) const {
  return free_name(path_ / (step == 0 ? "trace.json" : fmt::format("trace-{:06}.json", step)));
}

fs::path RunFolder::partial_model() {
  fs::path partial = path_ / "model.partial";
  std::error_code refused;           // then writing says why
  fs::remove_all(partial, refused);  // of a program that was killed
  return partial;
}

fs::path RunFolder::place_model() {
  const fs::path partial = path_ / "model.partial";
  const fs::path model = path_ / "model";
  const bool adapters = fs::exists(partial / kAdapterWeights);
  const char* const weights = adapters ? kAdapterWeights : "model.safetensors";
  fs::path aside;
  if (fs::exists(model)) {
    const auto same = [&](const char* name) {  // neither has it, or both have the same
      const bool there = fs::exists(partial / name);
      return there == fs::exists(model / name) &&
             (!there || file_xxh64(model / name) == file_xxh64(partial / name));
    };
    if (same(weights) && same("config.json") && same("adapter_config.json")) {
      fs::remove_all(partial);
      return aside;
    }
    aside = free_name(model);
    move_path(model, aside);
  }
  move_path(partial, model);
  sync_path(path_);
  return aside;
}

void RunFolder::write_summary(const TrainSummary& summary) {
  const bool told = !summary.evaluations.empty() &&
                    summary.evaluations.back().step == summary.steps;  // with its step
  if (events_ && std::isfinite(summary.eval_loss) && !summary.interrupted && !told) {
    unwritten_.append(
        events_->path(), EventFile::record(summary.steps, {{"eval/loss", summary.eval_loss}}));
  }
  const nlohmann::json json = json_of(summary);  // by name
  replace_text(path_ / "summary.json", json.dump(2) + "\n");
}

}  // namespace paradyse
