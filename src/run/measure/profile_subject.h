// What a profile runs: a model cut to two layers, or more where layers differ, and the steps that
// are measured of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "paradyse/plan/plan.h"
#include "paradyse/plan/profile.h"
#include "src/run/measure/profiler.h"

namespace paradyse {

// Of `length` tokens each, where weights are whole: what is exchanged before the first and after
// the last is not measured, so several share it, the more the shorter, since short ones differ
// most.
int micro_batches_of_whole(std::int64_t length);

// Micro-batches to measure, all alike, in one of the rounds.
struct ProfileStep {
  StepProbe probe;   // what it is called; nothing is measured of it yet
  Plan plan;         // of the cut model
  std::string what;  // for people
  int round = 0;
};

struct ProfileSubject {
  ProfileHeader header;
  Model model;  // cut
  std::int64_t layers = 0;
  std::vector<std::int64_t> optimizer_layers = {};  // of models whose update is measured
  std::vector<ProfileStep> steps = {};              // the most telling first: time may end it
};

// Of a language model: every strategy and recompute level at every length, in groups of 2, 4, ...
// ranks those that such groups can run.  Of a video or protein model: the planned layout and every
// rival's, none made again and all, at every size.
ProfileSubject profile_subject(const ProfileRequest& request);

}  // namespace paradyse
