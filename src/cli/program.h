// The program around its commands: finds the one that is given, runs it, and is the one place where
// errors end.
#pragma once

#include <string>
#include <vector>

#include "src/cli/commands.h"

namespace paradyse::cli {

struct CommandGroup {
  const char* name;  // what they are for, in the help
  std::vector<void (*)(CLI::App& app, Common& common)> commands;
};

// With the commands of paradyse and more.  Ends the process, whose exit code says how it went.
[[noreturn]] void run_program(
    int argc,
    char** argv,
    const std::vector<CommandGroup>& more = {},
    const std::string& name = "paradyse");

}  // namespace paradyse::cli
