#include "src/cli/commands.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "paradyse/run/communicator.h"
#include "src/cli/environment.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/number_text.h"
#include "src/plan/base/text_match.h"
#include "src/plan/plan/plan_mark.h"

namespace paradyse::cli {
namespace {

// The first line of a message; of torch's, without the stack.
Failure internal(const char* what) {
  const std::string text = what;
  return {
      .message = "internal: " + text.substr(0, text.find("\nException raised from")) +
                 " (this is a fault of the program; please report it with the command line)",
      .code = kInternal};
}

}  // namespace

Failure failure_of(const std::exception& error) {
  if (dynamic_cast<const std::invalid_argument*>(&error) != nullptr) {
    return {.message = error.what(), .code = kUsage};
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return {
        .message =
            "this machine is out of memory; use fewer tokens at once, recompute more, or limit "
            "each rank with --memory-per-rank",
        .code = kFailed};
  }
  if (const auto* const aborted = dynamic_cast<const Aborted*>(&error)) {
    return {.message = error.what(), .code = aborted->bad_input() ? kUsage : kFailed};
  }
  if (dynamic_cast<const c10::Error*>(&error) == nullptr &&
      dynamic_cast<const std::runtime_error*>(&error) != nullptr) {
    return {.message = message_of(error), .code = kFailed};
  }
  return internal(error.what());
}

void print_json(const Json& json) {
  const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (std::fflush(stdout) != 0) {
    throw std::runtime_error("stdout cannot be written: is the disk full or the reader gone?");
  }
}

namespace {

// As other programs take it: COLUMNS, the terminal's, else 80.
std::size_t width_of_lines() {
  constexpr std::size_t kLeast = 40;
  constexpr std::size_t kUsual = 80;
  if (const char* const said = std::getenv("COLUMNS"); said != nullptr) {
    if (const long columns = std::strtol(said, nullptr, 10); columns > 0) {
      return std::max(kLeast, static_cast<std::size_t>(columns));
    }
  }
  winsize window{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0
             ? std::max<std::size_t>(kLeast, window.ws_col)
             : kUsual;
}

}  // namespace

std::string Common::table(const std::vector<std::vector<std::string>>& rows, TableLook look) const {
  look.width = verbose ? 0 : width_of_lines();
  return table_text(rows, look);
}

std::string verdict(const std::string& words, bool good) {
  const auto set = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const bool colours =
      isatty(STDOUT_FILENO) == 1 && set("NO_COLOR").empty() && set("TERM") != "dumb";
  return colours ? (good ? "\x1b[32m" : "\x1b[31m") + words + "\x1b[0m" : words;
}

std::string verdict_on_repeats(
    const std::string& what, double spread, double most, const std::string& remedy) {
  const std::string differ = fmt::format("{} differ by {}", what, percent_text(spread));
  return spread > most ? verdict("this machine was busy: " + differ + "; " + remedy, false)
                       : verdict("this machine was quiet: " + differ, true);
}

Dtype dtype_option(const std::string& value, const std::vector<std::string>& accepted) {
  expect_one_of("--dtype", value, accepted);
  return dtype_named(value);
}

namespace {

// Refuses what is no `Number`, to its last character, or does not suit.
template <typename Number, typename Suits>
Accepts accepting(const std::string& accepted, Suits suits) {
  const auto refusal = [=](const std::string& text) {
    Number value{};
    const char* const end = text.data() + text.size();
    const auto [parsed, error] = std::from_chars(text.data(), end, value);
    const bool fine = error == std::errc{} && parsed == end && suits(value);
    return fine ? std::string() : "'" + text + "' is not accepted, " + accepted + " is";
  };
  return refusal;
}

std::string range(const std::string& what, const std::string& least, const std::string& most) {
  return what + (most.empty() ? " of at least " + least : " from " + least + " to " + most);
}

}  // namespace

Accepts whole_numbers(std::int64_t least, std::int64_t most) {
  const bool bounded = most != std::numeric_limits<std::int64_t>::max();
  const std::string accepted =
      range("a whole number", std::to_string(least), bounded ? std::to_string(most) : "");
  return [=](std::string& text) {
    const std::optional<std::int64_t> value = whole_number(text);
    if (!value || *value < least || *value > most) {
      return "'" + text + "' is not accepted, " + accepted + " is";
    }
    text = std::to_string(*value);
    return std::string();
  };
}

Accepts numbers(double least, double most) {
  return accepting<double>(
      range(
          "a number", fmt::format("{}", least), std::isfinite(most) ? fmt::format("{}", most) : ""),
      [=](double value) { return std::isfinite(value) && value >= least && value <= most; });
}

namespace {

bool writes() {
  const std::optional<Membership> of = membership();
  return !of || of->rank == 0;
}

}  // namespace

Accepts writable_file(bool makes_folders) {
  return [makes_folders](const std::string& file) {
    const std::string why = writes() ? why_not_writable(file, makes_folders) : "";
    return why.empty() ? why : file + ": " + why;
  };
}

Accepts replaceable_file(const std::string& what, const std::string& mark, std::size_t at) {
  return [=](std::string& file) -> std::string {
    if (const std::string why = writable_file()(file); !why.empty() || !writes()) {
      return why;
    }
    const std::string why = why_not_ours(file, what, mark, at);
    return why.empty() ? why : file + ": " + why + "; give another file, or move that one away";
  };
}

Accepts plan_to_write() { return replaceable_file("a plan", std::string(kPlanMark)); }

void expect_writable(const std::string& option, const std::string& file, bool makes_folders) {
  const std::string why = writes() ? why_not_writable(file, makes_folders) : "";
  if (!why.empty()) {
    throw std::invalid_argument(option + " " + file + ": " + why);
  }
}

Accepts seconds() {
  return accepting<double>("a number of seconds above 0, at most 1000000", [](double value) {
    return value > 0 && value <= 1e6;
  });
}

}  // namespace paradyse::cli
