#include "src/cli/command.h"

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "src/plan/base/text_match.h"

namespace paradyse::cli {

CommandOption CommandOption::capture_default_str() {
  option_->capture_default_str();
  return *this;
}

CommandOption CommandOption::check(const Accepts& accepts) {
  option_->check(CLI::Validator(accepts, ""));
  return *this;
}

CommandOption CommandOption::default_str(const std::string& text) {
  option_->default_str(text);
  return *this;
}

CommandOption CommandOption::delimiter(char between) {
  option_->delimiter(between);
  return *this;
}

CommandOption CommandOption::expected(int values) {
  option_->expected(values);
  return *this;
}

CommandOption CommandOption::option_text(const std::string& text) {
  option_->option_text(text);
  return *this;
}

CommandOption CommandOption::required() {
  option_->required();
  return *this;
}

CommandOption CommandOption::take_all() {
  option_->take_all();
  return *this;
}

CommandOption CommandOption::transform(const Accepts& accepts) {
  option_->transform(CLI::Validator(accepts, ""));
  return *this;
}

CommandOption CommandOption::type_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}

template <typename Value>
CommandOption Command::add_option(
    const std::string& names, Value& value, const std::string& description) {
  CommandOption option(app_.add_option(names, value, description));
  constexpr bool kTexts = std::is_same_v<Value, std::vector<std::string>>;
  // Words of another program's may be anything.
  if ((kTexts && names.starts_with("-")) || std::is_same_v<Value, std::string>) {
    option.check([](const std::string& text) {
      return text.empty() ? "is empty: is the variable that it comes from set? Give a name, or "
                            "leave the option out"
                          : "";
    });
  }
  return option;
}

template CommandOption Command::add_option(const std::string&, int&, const std::string&);
template CommandOption Command::add_option(const std::string&, std::int64_t&, const std::string&);
template CommandOption Command::add_option(const std::string&, std::uint64_t&, const std::string&);
template CommandOption Command::add_option(const std::string&, double&, const std::string&);
template CommandOption Command::add_option(const std::string&, std::string&, const std::string&);
template CommandOption Command::add_option(
    const std::string&, std::vector<int>&, const std::string&);
template CommandOption Command::add_option(
    const std::string&, std::vector<std::int64_t>&, const std::string&);
template CommandOption Command::add_option(
    const std::string&, std::vector<double>&, const std::string&);
template CommandOption Command::add_option(
    const std::string&, std::vector<std::string>&, const std::string&);
template CommandOption Command::add_option(
    const std::string&, std::optional<std::uint64_t>&, const std::string&);
template CommandOption Command::add_option(
    const std::string&, std::optional<int>&, const std::string&);
template CommandOption Command::add_option(
    const std::string&, std::optional<std::int64_t>&, const std::string&);

CommandOption Command::add_option_function(
    const std::string& names,
    const std::function<void(const std::int64_t& value)>& function,
    const std::string& description) {
  return CommandOption(app_.add_option_function<std::int64_t>(names, function, description));
}

CommandOption Command::add_flag(
    const std::string& names, bool& value, const std::string& description) {
  return CommandOption(app_.add_flag(names, value, description));
}

void Command::callback(const std::function<void()>& function) { app_.callback(function); }

std::vector<std::pair<std::string, std::string>> Command::given() const {
  std::vector<std::pair<std::string, std::string>> given = {{"the command", app_.get_name()}};
  for (const CLI::Option* const option : std::as_const(app_).get_options()) {
    if (option->count() > 0) {
      given.emplace_back(option->get_name(), joined(option->results(), " "));
    }
  }
  return given;
}

bool read_known(
    const std::function<void(Command& command)>& declare, std::vector<std::string> words) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  Command command(app);
  declare(command);
  std::ranges::reverse(words);  // as CLI11 takes them
  try {
    app.parse(words);
    return true;
  } catch (const CLI::ParseError&) {
    return false;
  }
}

std::shared_ptr<Command> new_command(
    CLI::App& app, const std::string& name, const std::string& description) {
  return std::make_shared<Command>(*app.add_subcommand(name, description));
}

CLI::App& new_commands(CLI::App& app, const std::string& name, const std::string& description) {
  CLI::App& commands = *app.add_subcommand(name, description);
  commands.require_subcommand(1);
  return commands;
}

}  // namespace paradyse::cli
