#include "src/cli/program.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <unistd.h>

#include "src/cli/backend_options.h"
#include "src/cli/commands.h"
#include "src/cli/interrupt.h"
#include "src/cli/tell.h"
#include "src/cli/version.h"
#include "src/plan/base/shell_word.h"
#include "src/plan/base/text_match.h"
#include "src/plan/base/wrapped_text.h"

namespace paradyse::cli {
namespace {

constexpr const char* kFooter =
    "Numbers of tokens may be written as 32K (32768) or 1M.  Tables fit the width of\nthe terminal "
    "(COLUMNS); --verbose shows all their columns.\n\nExit codes: 0 success; 1 the run failed, or "
    "a check found an error; 2 wrong\nusage or bad input; 70 a bug in this program; 130 or 143 "
    "train was interrupted\nby Ctrl-C or SIGTERM and saved a checkpoint.  Before its first step, "
    "and in\nother commands, a signal ends the program immediately (128 + its number in a\nshell). "
    " launch and all its ranks end with the same code.\n\nEach command has its own help: paradyse "
    "grad --help";

// The commands by what they are for, as the help lists them.
const std::vector<CommandGroup> kGroups = {
    {"Train and evaluate", {add_train, add_eval, add_export, add_generate, add_launch, add_config}},
    {"Plan and simulate", {add_plan, add_simulate}},
    {"Measure", {add_profile, add_fit, add_bench, add_report}},
    {"Check", {add_doctor, add_check, add_grad}}};

// An option as help and errors have it: its letter, and the first of its names.
std::string first_names(const CLI::Option& option) {
  std::string names = option.get_snames().empty() ? "" : "-" + option.get_snames().front();
  if (!option.get_lnames().empty()) {
    names += (names.empty() ? "--" : ",--") + option.get_lnames().front();
  }
  return names;
}

// Help in lines of at most 80 columns: descriptions are broken between words.
class Wrapped : public CLI::Formatter {
 public:
  Wrapped() { column_width(kColumn); }

  std::string make_description(const CLI::App* command) const override {
    return wrapped_text(CLI::Formatter::make_description(command), "", kWidth);
  }

  // Others are old names, or torchrun's other spelling.
  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    return positional ? option->get_name(true) : first_names(*option);
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(CLI::Formatter::make_option_desc(option));
  }

  std::string make_subcommand(const CLI::App* command) const override {
    std::stringstream out;
    CLI::detail::format_help(
        out, command->get_name(), wrapped(command->get_description()), kColumn);
    return out.str();
  }

 private:
  static constexpr std::size_t kWidth = 80;
  static constexpr std::size_t kColumn = 28;  // where descriptions begin

  static std::string wrapped(const std::string& text) {
    std::string lines = wrapped_text(text, "", kWidth - kColumn);
    lines.pop_back();
    return lines;
  }
};

// The command that was being parsed when an error came up.
CLI::App& deepest(CLI::App& app) {
  CLI::App* at = &app;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().back();
  }
  return *at;
}

std::string full_name(const CLI::App& command) {
  return command.get_parent() == nullptr
             ? command.get_name()
             : full_name(*command.get_parent()) + " " + command.get_name();
}

// The words as they would be right with -- before the command that launch starts; "": that is not
// what they lack.
std::string with_dashes(
    const CLI::App& launch, const std::string& program, const std::vector<std::string>& words) {
  const CLI::Option* const started = launch.get_option_no_throw("command");
  if (started == nullptr || started->count() == 0 ||
      std::ranges::find(words, "--") != words.end()) {
    return "";
  }
  const auto name = std::ranges::find(words, launch.get_name());
  const auto first = std::find(name, words.end(), started->results().front());
  std::string line = program;
  for (auto word = words.begin(); word != words.end(); ++word) {
    line += (word == first ? " -- " : " ") + shell_word(*word);
  }
  return line;
}

// What is wrong with the command line; an unknown word comes before what is missing because of it.
std::string usage_error(
    CLI::App& app, const CLI::ParseError& error, const std::vector<std::string>& words) {
  CLI::App& command = deepest(app);
  const std::string see = "; see " + full_name(command) + " --help";
  std::vector<std::string> options;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_lnames().empty()) {
      options.push_back("--" + option->get_lnames().front());
    }
  }
  std::vector<std::string> commands;
  for (const CLI::App* sub : command.get_subcommands({})) {
    commands.push_back(sub->get_name());
  }
  std::vector<std::string> extras = command.remaining();
  extras.erase(std::ranges::find(extras, "--"), extras.end());  // a command of its own
  if (!extras.empty()) {
    const std::string word = extras.front().substr(0, extras.front().find('='));
    if (word.starts_with("-")) {
      if (const std::string line = with_dashes(command, app.get_name(), words); !line.empty()) {
        return full_name(command) + ": unknown option " + word +
               "; the command that it starts comes after --: " + line;
      }
      return full_name(command) + ": unknown option " + word + did_you_mean(word, options) +
             "; known: " + joined(options, ", ") + see;
    }
    if (!commands.empty()) {
      return full_name(command) + ": unknown command '" + word + "'" +
             did_you_mean(word, commands) + "; known: " + joined(commands, ", ") + see;
    }
    return full_name(command) + ": '" + word + "' was not expected" + see;
  }
  if (!commands.empty()) {
    return full_name(command) + ": a command is needed: " + joined(commands, ", ") + see;
  }
  return full_name(command) + ": " + error.what() + see;
}

int report(const std::string& message, ExitCode code, bool json) {
  tell("paradyse: error: {}\n", message);
  if (json) {
    try {
      print_json({{"error", message}});
    } catch (const std::runtime_error& unwritten) {  // it may be what the message is about
      tell("paradyse: error: {}\n", unwritten.what());
    }
  }
  return code;
}

bool given(int argc, char** argv, const char* word) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], word) == 0) {
      return true;
    }
  }
  return false;
}

// Before a command, and on those that only hold others, --json means the same.
void add_json(CLI::App& app, Common& common) {
  if (app.get_option_no_throw("--json") == nullptr) {
    app.add_flag("--json", common.json, "Print only one JSON document on stdout");
    app.add_flag("--verbose", common.verbose, "Print all columns of tables, at any width");
  }
  for (CLI::App* command : app.get_subcommands({})) {
    add_json(*command, common);
  }
}

int run(int argc, char** argv, std::vector<CommandGroup> groups, const std::string& name) {
  // Errors of the command line are reported in JSON, too, though --json is not parsed then.
  const bool json = given(argc, argv, "--json");
  Common common;
  CLI::App app(
      "Trains transformers on several ranks and chooses a parallel strategy for every document "
      "length.",
      name);
  app.footer(kFooter);
  app.require_subcommand(1);
  app.set_version_flag("--version", version());
  app.formatter(std::make_shared<Wrapped>());
  groups.insert(groups.begin(), kGroups.begin(), kGroups.end());
  for (const CommandGroup& group : groups) {
    for (const auto& add : group.commands) {
      const std::size_t before = app.get_subcommands({}).size();
      add(app, common);
      app.get_subcommands({}).at(before)->group(group.name);
    }
  }
  add_json(app, common);
  if (argc < 2) {
    std::fputs(app.help().c_str(), stdout);
    return kOk;
  }
  // "paradyse help train" as in git
  std::vector<std::string> words(argv + 1, argv + argc);
  if (words.front() == "help") {
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  const std::vector<std::string> in_order = words;
  std::ranges::reverse(words);  // as CLI11 takes them
  try {
    app.parse(words);
  } catch (const CLI::CallForVersion&) {
    common.run = [&] {
      if (json) {
        print_json({{"version", version()}});
      } else {
        fmt::print("{} {}\n", name, version());
      }
      return kOk;
    };
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    const std::string message = usage_error(app, error, in_order);
    const int code = report(message, kUsage, json);
    tell_other_ranks(deepest(app), {.message = message, .code = kUsage}, argc, argv);
    return code;
  }
  try {
    return common.run();
  } catch (const std::exception& error) {
    const Failure failure = failure_of(error);
    const int code = report(failure.message, failure.code, json);
    tell_other_ranks(deepest(app), failure, argc, argv);
    return code;
  }
}

// Of a file that is opened next none gets the number of a closed stdin, stdout or stderr: what is
// printed would be written into it.
void keep_standard_numbers() {
  while (true) {
    const int descriptor = ::open("/dev/null", O_RDONLY);  // so writing stays the error that it is
    if (descriptor < 0 || descriptor > STDERR_FILENO) {
      ::close(descriptor);
      return;
    }
  }
}

// Why stdout takes nothing, where that is known before it is written: it is closed, or /dev/full.
std::string why_no_stdout() {
  return ::write(STDOUT_FILENO, "", 0) < 0 ? std::generic_category().message(errno) : "";
}

int exit_code_of(
    int argc, char** argv, const std::vector<CommandGroup>& more, const std::string& name) {
  hold_save_wishes();
  std::signal(SIGXFSZ, SIG_IGN);  // a file over the limit: an error that is told, not an end
  keep_standard_numbers();
  if (const std::string why = why_no_stdout(); !why.empty()) {
    return report(
        "stdout cannot be written: " + why + "; send it to a file, a pipe or /dev/null",
        kUsage,
        false);
  }
  const int code = run(argc, argv, more, name);
  if (code == kOk && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) && !reader_has_left()) {
    return report(
        "not all of stdout was written: is the disk full or the reader gone?", kFailed, false);
  }
  return code;
}

}  // namespace

void run_program(
    int argc, char** argv, const std::vector<CommandGroup>& more, const std::string& name) {
  const int code = exit_code_of(argc, argv, more, name);
  // Without the destructors of static objects: those of libtorch's tables of ops take a fourth of
  // the time of a short command, and nothing of ours is left to be done by them.
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace paradyse::cli
