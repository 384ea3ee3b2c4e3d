// Clips that a video model makes from noise, and their frames as pictures.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/run/session.h"
#include "src/run/data/stdit/made_clips.h"

namespace paradyse {

// A clip [C, T, h, w], float64 on the host, of the size of each of these: from noise, t = 0, along
// the predicted velocity to t = 1 in `steps` of Euler's method (rectified flow, Liu et al. 2022).
// Every rank calls it and has all of them, the same for the same weights and seed on any ranks but
// for rounding.  `planner`: rank 0's.  Every rank calls `stop` before each step: none where it says
// so, on all of them.
std::vector<at::Tensor> sampled_clips(
    const std::vector<LikeClip>& like,
    std::int64_t steps,
    std::uint64_t seed,
    BatchPlanner* planner,
    const std::function<bool()>& stop,
    RankSession& session);

// clip-0-frame-000.png, ... in the new folder `to`: numbers from -1 to 1 of the first three
// channels as red, green and blue, of one or two the first as grey.  Throws std::runtime_error
// naming a file that cannot be written.
void write_frames(const std::vector<at::Tensor>& clips, const std::filesystem::path& to);

}  // namespace paradyse
