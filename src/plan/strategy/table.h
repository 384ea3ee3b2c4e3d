// The strategies that plans may name, each declared with its options in a file of its name below
// <kind>/; table.cc lists them.
#pragma once

#include <string>
#include <vector>

#include "paradyse/plan/strategy.h"

namespace paradyse {

// All rows, of all kinds; add_strategy() appends.
std::vector<Strategy>& strategy_table();

Strategy ulysses_z();  // DataZ is what is left of it on one rank

// What parts outside layers run, each of a kind of its own: plans do not choose it.
inline constexpr const char* kEndStrategy = "gather";
Strategy end_strategy(const char* kind, Program (*build)(const Task&));

// "METP", or "hold, gather, pass": those of a kind that have an option; "": none has it.
std::string strategies_with(const std::string& kind, const std::string& option);

// The option of every MLP strategy.
Option token_tiles_option();

// Of what gathers tokens in front of weights that are held: whether they are gathered again for the
// backward pass.
inline constexpr const char* kKeepOption = "keep_gathered";
Option keep_gathered_option();

}  // namespace paradyse
