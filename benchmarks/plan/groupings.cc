// Planners of groups against one another on the cluster of the FlexSP publication: seconds of their
// plans, the area bound, and how long they took.  One JSON file is the result; what stands in it is
// not run again, so a run that was stopped goes on, and more planners, batches or sources are added
// by another run.
//
//   cmake -S . -B build/plan -DPARADYSE_RUN=OFF -DPARADYSE_BENCHMARKS=ON -DCMAKE_BUILD_TYPE=Release
//   cmake --build build/plan --target benchmark.groupings
//   zcat wikipedia.txt.gz >wikipedia.txt
//   build/plan/bin/benchmark.groupings rivals    --lengths wikipedia.txt --out rivals.json
//   build/plan/bin/benchmark.groupings published --lengths wikipedia.txt --out published.json
//   benchmarks/groupings.py rivals.json          (or: --published published.json)
//
// `rivals`: all planners of the table, 7B at 192 K, 20 batches of each source.  `published`: the
// speed-up table of the publication, 3 models x 2 contexts x 3 sources, 2 batches each; static and
// homogeneous groups and the published method, which has 5 s a micro-batch for the least number of
// micro-batches and one more; and the fast planner.  Each may be set otherwise, lists by commas:
//
//   --sources wikipedia,commoncrawl,github   --models flexsp-7b,...   --contexts 192000,384000
//   --planners NAME,...   --batches 20   --first 0   --ranks 64,256   --documents 512 (8 a rank)
//   --solver-seconds 10   --more 4   --moves 1   --repeats 1   --spaces flexsp,full,overlap
//
// A batch of `wikipedia` is the next so many documents of the list, one of the others is drawn:
// lognormal, stand-ins for corpora that were not released.  Documents longer than the context are
// dropped first.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <numbers>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lab/flexsp/presets.h"
#include "src/plan/base/lengths_file.h"
#include "src/plan/search/grouping/bounds.h"
#include "src/plan/search/grouping/planners.h"

namespace paradyse {
namespace {

using nlohmann::json;

struct Lognormal {
  const char* source;
  double median;  // tokens
  double sigma;
};
constexpr Lognormal kDrawn[] = {{"commoncrawl", 1200, 1.66}, {"github", 1000, 1.95}};

std::vector<std::string> list_of(const std::string& text) {
  std::vector<std::string> items;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) {
    items.push_back(item);
  }
  return items;
}

class Batches {
 public:
  explicit Batches(std::string path) : path_(std::move(path)) {}

  std::vector<std::int64_t> batch(
      const std::string& source, std::int64_t context, int documents, int number) {
    for (const Lognormal& drawn : kDrawn) {
      if (source == drawn.source) {
        return draw(drawn, context, documents, number);
      }
    }
    if (source != "wikipedia") {
      throw std::invalid_argument(
          "source '" + source + "' is not known; there are wikipedia, commoncrawl, github");
    }
    if (list_.empty()) {
      list_ = read_lengths(path_, std::numeric_limits<std::int64_t>::max()).tokens;
    }
    std::vector<std::int64_t> lengths;
    std::int64_t skip = std::int64_t{number} * documents;
    for (const std::int64_t n : list_) {
      if (n <= context && skip-- <= 0 && std::ssize(lengths) < documents) {
        lengths.push_back(n);
      }
    }
    if (std::ssize(lengths) < documents) {
      throw std::invalid_argument(path_ + " has no batch " + std::to_string(number));
    }
    return lengths;
  }

 private:
  static std::vector<std::int64_t> draw(
      const Lognormal& drawn, std::int64_t context, int documents, int number) {
    // Box-Muller on a generator that the standard fixes: the same numbers everywhere.
    std::mt19937_64 random(static_cast<std::uint64_t>(number) + 1);
    const auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
    std::vector<std::int64_t> lengths;
    while (std::ssize(lengths) < documents) {
      const double radius = std::sqrt(-2 * std::log(uniform()));
      const double normal = radius * std::cos(2 * std::numbers::pi * uniform());
      const auto n = std::llround(drawn.median * std::exp(drawn.sigma * normal));
      if (n >= 1 && n <= context) {
        lengths.push_back(n);
      }
    }
    return lengths;
  }

  std::string path_;
  std::vector<std::int64_t> list_;
};

std::string machine() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) {
      return line.substr(line.find(':') + 2);
    }
  }
  return "unknown";
}

// The stored rows; each new one is on the disk before the next is run.
class Results {
 public:
  explicit Results(std::string path) : path_(std::move(path)) {
    if (std::ifstream file(path_); file) {
      rows_ = json::parse(file).at("rows");
      for (const json& row : rows_) {
        known_.insert(row.at("case").dump());
      }
    }
  }

  [[nodiscard]] bool has(const json& a_case) const { return known_.contains(a_case.dump()); }

  void add(const json& row) {
    known_.insert(row.at("case").dump());
    rows_.push_back(row);
    const std::string partial = path_ + ".partial";
    {
      std::ofstream file(partial);
      file << "{\"rows\": [";
      const char* between = "\n  ";
      for (const json& one : rows_) {
        file << between << one.dump();
        between = ",\n  ";
      }
      file << "]}\n";
      if (!file.flush()) {
        throw std::runtime_error("cannot write " + partial);
      }
    }
    std::filesystem::rename(partial, path_);
  }

 private:
  std::string path_;
  json rows_ = json::array();
  std::set<std::string> known_;
};

struct Timed {
  GroupingAnswer answer;
  double bound = 0;  // seconds: by area, and the largest that is known
  double lower_bound = 0;
  double milliseconds = 0;  // from lengths to plan
};

Timed timed(
    const GroupingPlannerRow& planner,
    const FlexspSetting& setting,
    const std::string& space,
    const std::vector<std::int64_t>& lengths,
    const GroupingOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const GroupingTask task =
      space == "flexsp"
          ? flexsp_task(setting, lengths)
          : flexsp_full_space(setting, {.overlapped = space == "overlap"}, lengths).task;
  Timed timed{.answer = planner.plan(task, options)};
  const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - begin;
  timed.milliseconds = spent.count();
  timed.bound = area_bound(task).seconds;
  timed.lower_bound = lower_bound(task).seconds;
  if (timed.answer.grouping) {
    for (const std::string& problem : problems(task, *timed.answer.grouping)) {
      throw std::runtime_error(std::string(planner.name) + " made a wrong plan: " + problem);
    }
  }
  return timed;
}

using Options = std::map<std::string, std::string>;

Options options_of(int argc, char** argv) {
  std::string all;
  bool fast = false;
  for (const GroupingPlannerRow& row : grouping_planners()) {
    fast = fast || std::string(row.name) == "fast";
    all.append(all.empty() ? "" : ",").append(row.name);
  }
  Options options = {
      {"lengths", ""},
      {"out", ""},
      {"sources", "wikipedia,commoncrawl,github"},
      {"models", "flexsp-7b"},
      {"contexts", "192000"},
      {"planners", all},
      {"batches", "20"},
      {"first", "0"},
      {"ranks", "64"},
      {"documents", ""},
      {"solver-seconds", "10"},
      {"more", "4"},
      {"moves", "1"},
      {"repeats", "1"},
      {"spaces", "flexsp"}};
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "published") {
    options["models"] = "flexsp-7b,flexsp-13b,flexsp-30b";
    options["contexts"] = "192000,384000";
    options["planners"] =
        std::string("static,homogeneous,") + (fast ? "fast," : "") + "flexsp-milp";
    options["batches"] = "2";
    options["solver-seconds"] = "5";
    options["more"] = "1";
  } else if (mode != "rivals") {
    throw std::invalid_argument("usage: groupings rivals|published --lengths FILE --out FILE ...");
  }
  for (int i = 2; i < argc; i += 2) {
    const std::string name = argv[i];
    if (!name.starts_with("--") || !options.contains(name.substr(2)) || i + 1 == argc) {
      throw std::invalid_argument("'" + name + "' is no option, or lacks its value");
    }
    options[name.substr(2)] = argv[i + 1];
  }
  if (options["out"].empty()) {
    throw std::invalid_argument("--out FILE says where the results go");
  }
  return options;
}

struct Problem {
  FlexspSetting setting;
  std::string space;
  std::string source;
  int batch = 0;
  int documents = 0;
};

// Batches outermost: whenever a run is stopped, all planners have run on the same ones.
std::vector<Problem> problems_of(Options options) {
  std::vector<Problem> found;
  const int first = std::stoi(options["first"]);
  for (int batch = first; batch < first + std::stoi(options["batches"]); ++batch) {
    for (const std::string& ranks : list_of(options["ranks"])) {
      for (const std::string& model : list_of(options["models"])) {
        for (const std::string& context : list_of(options["contexts"])) {
          for (const std::string& source : list_of(options["sources"])) {
            for (const std::string& space : list_of(options["spaces"])) {
              Problem& problem = found.emplace_back();
              problem.setting = {
                  .model = flexsp_model(model),
                  .ranks = std::stoi(ranks),
                  .context = std::stoll(context)};
              if (problem.setting.model == nullptr) {
                throw std::invalid_argument("model '" + model + "' is not known");
              }
              problem.space = space;
              problem.source = source;
              problem.batch = batch;
              problem.documents = options["documents"].empty() ? 8 * problem.setting.ranks
                                                               : std::stoi(options["documents"]);
            }
          }
        }
      }
    }
  }
  return found;
}

void run(Options options) {
  Batches batches(options["lengths"]);
  Results results(options["out"]);
  const GroupingOptions planning{
      .moves = std::stod(options["moves"]),
      .solver_seconds = std::stod(options["solver-seconds"]),
      .more_micro_batches = std::stoi(options["more"])};
  for (const Problem& problem : problems_of(options)) {
    std::vector<std::int64_t> lengths;
    for (const std::string& name : list_of(options["planners"])) {
      const GroupingPlannerRow& planner = grouping_planner(name);
      json a_case = {
          {"source", problem.source},
          {"batch", problem.batch},
          {"model", problem.setting.model->name},
          {"context", problem.setting.context},
          {"ranks", problem.setting.ranks},
          {"documents", problem.documents},
          {"planner", *planner.old_name != '\0' ? planner.old_name : planner.name},  // as stored
          {"solver_seconds", planning.solver_seconds},
          {"more_micro_batches", planning.more_micro_batches},
          {"moves", planning.moves}};
      if (problem.space != "flexsp") {
        a_case["space"] = problem.space;
      }
      if (results.has(a_case)) {
        continue;
      }
      if (lengths.empty()) {
        lengths = batches.batch(
            problem.source, problem.setting.context, problem.documents, problem.batch);
      }
      Timed best = timed(planner, problem.setting, problem.space, lengths, planning);
      for (int r = 1; r < std::stoi(options["repeats"]) && best.milliseconds < 1000; ++r) {
        best.milliseconds = std::min(
            best.milliseconds,
            timed(planner, problem.setting, problem.space, lengths, planning).milliseconds);
      }
      json row = {
          {"case", a_case},
          {"machine", machine()},
          {"bound", best.bound},
          {"lower_bound", best.lower_bound},
          {"milliseconds", best.milliseconds}};
      if (best.answer.grouping) {
        row["seconds"] = best.answer.grouping->seconds;
        row["micro_batches"] = best.answer.grouping->micro_batches.size();
        row["optimal"] = best.answer.optimal;
      } else {
        row["why_not"] = best.answer.why_not;
      }
      results.add(row);
      std::cout << row.dump() << std::endl;
    }
  }
}

}  // namespace
}  // namespace paradyse

int main(int argc, char** argv) {
  try {
    paradyse::run(paradyse::options_of(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "groupings: " << error.what() << "\n";
    return 2;
  }
}
