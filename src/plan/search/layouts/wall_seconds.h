// Seconds of parts of video and protein models on all ranks of a group.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "paradyse/plan/time_model.h"

namespace paradyse {

// What costs call a part: its own name; "move", whatever is moved; "rest", what is in no layer.
std::string costed_name(const ScheduledPart& part);

struct SecondsTask {
  int ranks = 1;
  MachineNumbers machine;  // cores that ranks share; and the closed form
  Precision precision;
  std::shared_ptr<const TimeModel> seconds = {};  // none: the closed form
};

// Of all ranks that share the machine's cores, forward and backward, until all are done.
double wall_seconds(const ScheduledPart& part, const SecondsTask& task);
// Of copies to the host and back.
double copying_seconds(const Timeline& parts, const SecondsTask& task);
// Of all parts, one after the other, and copies.
double wall_seconds(const Timeline& parts, const SecondsTask& task);

}  // namespace paradyse
