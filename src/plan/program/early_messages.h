// Where in a part's backward pass messages begin, ahead of what waits for them (Messages::overlap).
#pragma once

#include <vector>

#include "paradyse/plan/detail/schedule.h"
#include "paradyse/plan/program.h"

namespace paradyse {

// The op of the step moves values inside the group and does nothing else.
bool is_move(const Program& program, const ScheduledOp& step);

// What is moved again, from what takes no work to make, is asked for in front of the work before
// it.
void ask_early(const Program& program, std::vector<ScheduledOp>& steps);

// A product whose operand was moved hands that gradient to the move before it makes the weights'.
void send_early(const Program& program, std::vector<ScheduledOp>& steps);

}  // namespace paradyse
