// The commands that paradyse-lab has beside those of paradyse, one file each.
#pragma once

#include <string>

#include "lab/flexsp/presets.h"
#include "src/cli/commands.h"

namespace paradyse::cli {

void add_flexsp(CLI::App& app, Common& common);
void add_flexsp_plan(CLI::App& flexsp, Common& common);
void add_memory(CLI::App& app, Common& common);
void add_replay(CLI::App& app, Common& common);

// The preset of --model.  Throws std::invalid_argument, with the names there are, for another.
const FlexspModel& known_flexsp_model(const std::string& name);

}  // namespace paradyse::cli
