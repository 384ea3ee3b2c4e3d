// paradyse plan batch --stream: a line of lengths in, a plan out.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>

#include <fmt/format.h>

#include "src/cli/planned_batch.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/gunzip.h"
#include "src/plan/base/lengths_file.h"

namespace paradyse::cli {
namespace {

void expect_stream_alone(const Common& common) {
  for (const char* const other : {"--batch", "--compare", "--context", "--explain", "--out"}) {
    const bool given = std::ranges::any_of(
        common.given, [&](const auto& option) { return option.first == other; });
    if (given) {
      throw std::invalid_argument(fmt::format(
          "{} cannot be combined with --stream, which prints the whole plan of every line; remove "
          "one of the two",
          other));
    }
  }
}

}  // namespace

int streamed_batches(const BatchOptions& options, const Common& common, const AskBatch& ask) {
  expect_stream_alone(common);
  const GroupingPlannerRow& planner = grouping_planner(options.exact ? "exact" : options.planner);
  const bool typed = options.lengths == "-";
  const std::string source = typed ? "standard input" : options.lengths;
  std::istringstream file;
  if (!typed) {
    file.str(gunzipped(
        content_of_named(source, "give a file with the lengths of a batch on each line"), source));
  }
  std::istream& lines = typed ? std::cin : file;
  int code = kOk;
  std::string line;
  for (std::int64_t number = 1; std::getline(lines, line); ++number) {
    std::string said;
    try {
      const BatchQuestion asked =
          ask(lengths_on_line(line, fmt::format("{}, line {}", source, number)));
      said = to_json_line(*answer(asked, planner, options.how).plan);
    } catch (const std::invalid_argument& error) {
      said = Json{{"error", error.what()}}.dump();
      code = kFailed;
    }
    fmt::print("{}\n", said);
    std::fflush(stdout);
  }
  return code;
}

}  // namespace paradyse::cli
