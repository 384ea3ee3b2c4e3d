// Plans that a run was given (--replay, --plan) and does not make: they are kept in its folder, so
// that it goes on by them when it is resumed.
//
//   RUN/given/plans/step-00001.json ...   of --replay
//   RUN/given/plan.json                   of --plan
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "paradyse/run/train.h"
#include "src/run/train/resume.h"

namespace paradyse {

// Which a run of recorded plans has for its first step.
std::filesystem::path first_plan_of(const std::filesystem::path& run);

// Copies what `from` gives into the folder of a new run.  Their hash
// (CheckpointState::given_plans);
// "": plans are made.  Throws std::runtime_error.
std::string keep_plans(const TrainFrom& from, const std::filesystem::path& run);

// The plans that a run which goes on with `ranks` ranks goes by: those that are kept, told by
// `note`.  On another number of ranks they cannot be played: plans are made, and that is told.
// Throws std::invalid_argument where they are not as they were kept.
TrainFrom with_kept_plans(
    TrainFrom from,
    const Resumed& resumed,
    int ranks,
    const std::function<void(const std::string& line)>& note);

}  // namespace paradyse
