// A command of the program while its options are declared: what we use of CLI11, compiled once.
//
// CLI11 is one header of inline functions, which each file that includes it compiles for some seven
// seconds; so command.cc, main.cc and commands.cc alone do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace paradyse::cli {

// What an option accepts: "" or why not; may put what is meant in place of what is written.
using Accepts = std::function<std::string(std::string& text)>;

// The functions of CLI::Option, which return the option for the next.
class CommandOption {
 public:
  explicit CommandOption(CLI::Option* option) : option_(option) {}
  CommandOption* operator->() { return this; }

  CommandOption capture_default_str();
  CommandOption check(const Accepts& accepts);
  CommandOption default_str(const std::string& text);
  CommandOption delimiter(char between);
  CommandOption expected(int values);
  CommandOption option_text(const std::string& text);
  CommandOption required();
  CommandOption take_all();
  CommandOption transform(const Accepts& accepts);
  CommandOption type_name(const std::string& name);

 private:
  CLI::Option* option_;
};

class Command {
 public:
  explicit Command(CLI::App& app) : app_(app) {}

  // Value: a number or a string, or a list or an optional of them.  An empty string, of a variable
  // that is not set, is refused: without the option something else would be done.
  template <typename Value>
  CommandOption add_option(
      const std::string& names, Value& value, const std::string& description = "");
  // A whole number that a function takes.
  CommandOption add_option_function(
      const std::string& names,
      const std::function<void(const std::int64_t& value)>& function,
      const std::string& description);
  CommandOption add_flag(const std::string& names, bool& value, const std::string& description);
  // Called once the command line has been read.
  void callback(const std::function<void()>& function);
  // The command and the options that it was given, as "--ranks" and "4".
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> given() const;

 private:
  CLI::App& app_;
};

// Reads what `declare` declares from the words of any command, and passes over its other options.
// False: it cannot be read.
bool read_known(
    const std::function<void(Command& command)>& declare, std::vector<std::string> words);

std::shared_ptr<Command> new_command(
    CLI::App& app, const std::string& name, const std::string& description);
// One that has commands of its own, of which one is given.
CLI::App& new_commands(CLI::App& app, const std::string& name, const std::string& description);

}  // namespace paradyse::cli
