// The sub-commands of the program, one file each: declare options, call the library, print.
//
// add_x(app, common) declares a command.  Parsing sets Common::run to what the command does;
// main.cc calls it and is the only one who catches what it throws.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "paradyse/plan/dtype.h"
#include "src/cli/command.h"
#include "src/plan/base/table_text.h"
#include "src/run/memory/reading.h"

namespace paradyse::cli {

using Json = nlohmann::ordered_json;  // keys in the order in which they are documented

enum ExitCode { kOk = 0, kFailed = 1, kUsage = 2, kInternal = 70 };

// What went wrong, for people and as an exit code; the same whether ranks are threads or processes.
struct Failure {
  std::string message;
  ExitCode code = kFailed;
};
Failure failure_of(const std::exception& error);

// Shared by all commands.
struct Common {
  bool json = false;         // --json: one JSON document on stdout, all else on stderr
  bool verbose = false;      // --verbose: tables have all their columns
  std::function<int()> run;  // what the given command does; returns the exit code
  // The command and the options that it was given, as "--ranks" and "4".
  std::vector<std::pair<std::string, std::string>> given = {};

  // table_text() for lines of the terminal (COLUMNS, its width, else 80), or all columns.
  [[nodiscard]] std::string table(
      const std::vector<std::vector<std::string>>& rows, TableLook look) const;
};

// What a result is worth, in words: green or red where stdout is a terminal, without NO_COLOR.
std::string verdict(const std::string& words, bool good);
// Of repeats of one measurement, which differ by this share; by more than `most` on a busy machine.
std::string verdict_on_repeats(
    const std::string& what, double spread, double most, const std::string& remedy);

// Declares a command (main.cc adds --json to all).  `Options` hold what the options are parsed
// into.
//   auto [command, options] = add_command<GradOptions>(app, common, "grad", "...", run_grad);
template <typename Options>
std::pair<std::shared_ptr<Command>, std::shared_ptr<Options>> add_command(
    CLI::App& app,
    Common& common,
    const std::string& name,
    const std::string& description,
    int (*run)(const Options& options, const Common& common)) {
  std::shared_ptr<Command> command = new_command(app, name, description);
  auto options = std::make_shared<Options>();
  command->callback([&common, command, options, run] {
    common.run = [&common, options, run] { return run(*options, common); };
    common.given = command->given();
  });
  return {command, options};
}

void print_json(const Json& json);

// The value of --dtype; refuses as expect_one_of.
Dtype dtype_option(
    const std::string& value, const std::vector<std::string>& accepted = dtype_names());

// What an option accepts that is a number, or a list of them: option->transform(whole_numbers(1)),
// which also takes 32K, option->check(seconds()). Each refuses another value before the command
// runs, naming the option, the value and what is accepted. A value that is left out is not checked,
// so 0 may stand for it where 0 is refused.
Accepts whole_numbers(
    std::int64_t least, std::int64_t most = std::numeric_limits<std::int64_t>::max());
Accepts numbers(double least, double most = std::numeric_limits<double>::infinity());
Accepts seconds();  // more than 0, at most 1000000

// A file that the command is to write: one that cannot be is refused before anything is read.  Of
// several processes that of rank 0 writes, and alone is asked.
Accepts writable_file(bool makes_folders = false);
// And which replaces none but such a one as it writes: that begins with `mark`, behind `at` bytes.
Accepts replaceable_file(const std::string& what, const std::string& mark, std::size_t at = 0);
Accepts plan_to_write();  // such a file for a plan
// As writable_file() for one that the command names itself.  Throws std::invalid_argument.
void expect_writable(
    const std::string& option, const std::string& file, bool makes_folders = false);

void add_config(CLI::App& app, Common& common);
void add_doctor(CLI::App& app, Common& common);
void add_train(CLI::App& app, Common& common);
void add_eval(CLI::App& app, Common& common);
void add_generate(CLI::App& app, Common& common);
void add_grad(CLI::App& app, Common& common);
void add_check(CLI::App& app, Common& common);
void add_bench(CLI::App& app, Common& common);
void add_bench_comm(CLI::App& bench, Common& common);
void add_fit(CLI::App& app, Common& common);
void add_plan(CLI::App& app, Common& common);
void add_plan_layers(CLI::App& plan, Common& common);
void add_plan_batch(CLI::App& plan, Common& common);
void add_plan_layout(CLI::App& plan, Common& common);
void add_profile(CLI::App& app, Common& common);
void add_report(CLI::App& app, Common& common);
void add_export(CLI::App& app, Common& common);
void add_simulate(CLI::App& app, Common& common);
void add_launch(CLI::App& app, Common& common);

}  // namespace paradyse::cli
