// paradyse plan batch --stream: a line of lengths in, a plan out.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <streambuf>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "src/cli/planned_batch.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/gunzip.h"
#include "src/plan/base/lengths_file.h"
#include "src/plan/base/listed_lines.h"
#include "src/plan/plan/size_limits.h"

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
  ListedLine line{.source = typed ? "standard input" : options.lengths};
  std::optional<Gunzipped> file;
  if (!typed) {
    file.emplace(
        content_of_named(line.source, "give a file with the lengths of a batch on each line"),
        line.source);
  }
  std::streambuf& lines = typed ? *std::cin.rdbuf() : *file;
  int code = kOk;
  while (next_line(lines, line)) {
    std::string said;
    try {
      const BatchQuestion asked = ask(lengths_on_line(line.text, kMostSamples, line.place()));
      said = to_json_line(*answer(asked, planner, options.how).plan);
    } catch (const std::invalid_argument& error) {
      said = Json{{"error", error.what()}}.dump();
      code = kFailed;
    }
    fmt::print("{}\n", said);
    std::fflush(stdout);
  }
  if (const int error = errno; typed && std::ferror(stdin) != 0) {
    throw std::runtime_error(
        "standard input: cannot be read to its end: " + std::generic_category().message(error));
  }
  return code;
}

}  // namespace paradyse::cli
