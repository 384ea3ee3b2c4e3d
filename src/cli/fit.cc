// paradyse fit: cost models from a profile, and how wrong they are on lengths left out.
#include "src/plan/profile/fit.h"

#include <filesystem>
#include <map>
#include <optional>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/cli/commands.h"
#include "src/cli/progress.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/number_text.h"
#include "src/plan/base/text_match.h"
#include "src/plan/profile/held_out_json.h"

namespace paradyse::cli {
namespace {

struct FitCommandOptions {
  std::string profile;
  std::string out;
  std::string hybrid = "by-range";
};

// What `paradyse train` looks for beside that profile.  Throws std::invalid_argument.
std::string costs_beside(const std::string& profile) {
  const std::string ending = ".profile.jsonl";
  if (!profile.ends_with(ending)) {
    throw std::invalid_argument(
        "--out is not given, and " + profile + " does not end in " + ending +
        ", which would name the costs file: give --out");
  }
  return profile.substr(0, profile.size() - ending.size()) + ".costs.json";
}

// Only costs of the same profiling may be replaced.  Throws std::invalid_argument.
void expect_replaceable(const std::filesystem::path& out, const ProfileHeader& header) {
  if (!std::filesystem::exists(std::filesystem::symlink_status(out))) {
    return;
  }
  if (const std::string why = why_not_readable(out); !why.empty()) {
    throw std::invalid_argument("--out " + out.string() + ": is no file to write costs to: " + why);
  }
  const std::string remedy = "; nothing was written: give another file, or move that one away";
  ProfileHeader there;
  try {
    there = read_costs(out).header;
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(
        "--out: exists and is not a costs file: " + std::string(error.what()) + remedy);
  }
  const std::string difference = difference_of(there, header);
  if (!difference.empty()) {
    throw std::invalid_argument(
        "--out " + out.string() + ": holds costs of another run: " + difference + remedy);
  }
}

std::string error_text(std::optional<double> ratio) { return ratio ? percent_text(*ratio) : "-"; }
std::string signed_percent(std::optional<double> ratio) {
  return ratio ? signed_percent_text(*ratio) : "-";
}

// A row for each part and strategy; of each model the mean, signed mean and worst error inside and
// beyond, and what repeats differ by.
std::string table(const Costs& costs, const Common& common) {
  std::vector<std::string> order;
  std::map<std::string, std::map<std::pair<std::string, bool>, const HeldOutError*>> rows;
  for (const HeldOutError& error : costs.errors) {
    const std::string part = error.part.empty() ? "all" : error.part;
    const std::string name = part + "\n" +
                             (error.ranks == 1         ? "single ranks"
                              : error.ranks > 1        ? fmt::format("groups of {}", error.ranks)
                              : error.strategy.empty() ? "all"
                                                       : error.strategy);
    if (!rows.contains(name)) {
      order.push_back(name);
    }
    rows[name][{error.model, error.beyond}] = &error;
  }
  std::vector<std::vector<std::string>> cells = {
      {"part",
       "strategy",
       "repeats",
       "structured",
       "signed",
       "worst",
       "beyond",
       "signed",
       "worst",
       "hybrid",
       "signed",
       "worst",
       "beyond",
       "signed",
       "worst"}};
  for (const std::string& name : order) {
    const std::size_t cut = name.find('\n');
    std::vector<std::string> row = {name.substr(0, cut), name.substr(cut + 1)};
    const HeldOutError& any = *rows[name].begin()->second;
    row.push_back(error_text(any.floor));
    for (const char* model : {"structured", "hybrid"}) {
      for (const bool beyond : {false, true}) {
        const auto found = rows[name].find({model, beyond});
        const bool known = found != rows[name].end();
        row.push_back(known ? error_text(found->second->mean) : "-");
        row.push_back(known ? signed_percent(found->second->bias) : "-");
        row.push_back(known ? error_text(found->second->worst) : "-");
      }
    }
    cells.push_back(std::move(row));
  }
  return common.table(cells, {.left = 2, .drop = {"signed"}});
}

// Of the machine while it was profiled; "" where nothing was measured twice.
std::string verdict_on(const Costs& costs) {
  constexpr double kBusy = 0.1;  // on average
  double floor = 0;
  for (const HeldOutError& error : costs.errors) {
    if (error.part == "step") {
      floor = std::max(floor, error.floor.value_or(0));
    }
  }
  return floor == 0 ? ""
                    : verdict_on_repeats("repeats of a step", floor, kBusy, "profile again") + "\n";
}

int run_fit(const FitCommandOptions& given, const Common& common) {
  FitCommandOptions options = given;
  expect_one_of("--hybrid", options.hybrid, {"by-range", "by-strategy"});
  if (options.out.empty()) {
    options.out = costs_beside(options.profile);
    expect_writable("--out", options.out);
  }
  const Profile profile = read_profile(options.profile);
  expect_replaceable(options.out, profile.header);
  const FitOptions how{
      .hybrid = options.hybrid == "by-range" ? Hybrid::by_range : Hybrid::by_strategy};
  Costs costs;
  try {
    const Waiting waiting("fitting", common.json);
    costs = fit(profile, how);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(options.profile + ": " + error.what());
  }
  write_costs(costs, options.out);
  const std::vector<std::string> left_out = left_out_of_a_fit(profile);
  if (common.json) {
    Json json = {
        {"out", options.out},
        {"best", costs.best},
        {"memory_overhead", costs.memory_overhead},
        {"optimizer_seconds_per_byte", costs.optimizer_seconds_per_byte},
        {"step_seconds", costs.step_seconds},
        {"left_out", left_out},
        {"errors", Json::array()}};
    for (const HeldOutError& error : costs.errors) {
      json["errors"].push_back(json_of(error));
    }
    print_json(json);
    return kOk;
  }
  fmt::print(
      "Mean and worst error of predicted seconds (for peak memory: bytes) on held-out\n"
      "lengths: inside the profiled range, and beyond (fitted up to a quarter of the\n"
      "longest length).  Signed: mean of predicted / measured - 1.  Repeats: how much\n"
      "one round of measurements differs from the others; no model can do better.\n\n{}\n"
      "{}{}default model: {}\nmemory overhead: {}\nwritten: {}\n",
      table(costs, common),
      verdict_on(costs),
      left_out.empty() ? ""
                       : fmt::format(
                             "left out, measured at fewer than three lengths (costs of other "
                             "strategies of the part are used): {}\n",
                             fmt::join(left_out, ", ")),
      costs.best,
      percent_text(costs.memory_overhead),
      options.out);
  return kOk;
}

}  // namespace

void add_fit(CLI::App& app, Common& common) {
  auto [command, options] = add_command<FitCommandOptions>(
      app,
      common,
      "fit",
      "Fit cost models to a profile and print their error on held-out lengths",
      run_fit);
  command
      ->add_option("--profile", options->profile, "What `paradyse profile` measured (JSON lines)")
      ->required();
  command
      ->add_option(
          "--out",
          options->out,
          "Costs file to write (default: X.costs.json in the folder of X.profile.jsonl)")
      ->check(writable_file());
  command
      ->add_option(
          "--hybrid",
          options->hybrid,
          "How the ParaDySe paper's model combines forests and polynomials: by-range (forest "
          "inside the profiled range, polynomial beyond) or by-strategy (the better one for each "
          "strategy)")
      ->capture_default_str();
}

}  // namespace paradyse::cli
