// A step that goes on from lack of memory, as `train` does, with the same plan.
#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/run/session.h"

namespace paradyse::test {

// Plays forward and backward, again as often as some rank lacks memory.  After each try that is
// thrown away, `reason` is in what recover() says, and nothing of the try is held.
void play_until_memory_suffices(
    const Plan& plan,
    const std::vector<Item>& items,
    RankSession& session,
    const std::string& reason);

// Copies of all gradients that this rank holds.
std::vector<at::Tensor> held_gradients(Parameters& parameters);

}  // namespace paradyse::test
