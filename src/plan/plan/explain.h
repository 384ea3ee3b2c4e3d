// What the groups of a plan run, for people: `paradyse plan check --explain`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "paradyse/plan/plan.h"

namespace paradyse {

// A program of a group, and the layers that run it.
struct ExplainedProgram {
  std::size_t micro_batch = 0;
  std::size_t group = 0;
  std::string part;
  std::string strategy;
  std::vector<std::int64_t> layers;  // empty: embedding, head
  std::string text;                  // explain(program)
};

// The programs of every group, each distinct one of a group once.  Pre: problems(plan) finds none.
std::vector<ExplainedProgram> explained_programs(
    const Plan& plan, const Model& model, bool training);

// Of a plan that names no tiles and is played where others are the device's: that it goes by those
// of a CPU, which is what their absence means, and how to get the device's.  "": it names them, or
// they are the same.
std::string note_of_tiles(const Plan& plan, const Tiles& of_device);

}  // namespace paradyse
