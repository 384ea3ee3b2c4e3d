// Measures what parts of a model take on this machine: `paradyse profile`.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/dtype.h"
#include "paradyse/plan/model.h"
#include "paradyse/plan/plan.h"
#include "paradyse/plan/profile.h"
#include "paradyse/run/backend.h"

namespace paradyse {

struct ProfileRequest {
  Model model = {};
  int ranks = 1;
  std::vector<std::int64_t> lengths = {};  // ascending; of a model of several dims, in their place:
  std::vector<DimSizes> sizes = {};        // of samples, ascending in rows
  Dtype dtype = Dtype::float32;
  bool optimizer_on_host = false;    // optimizer.offload
  std::int64_t memory_per_rank = 0;  // bytes; what would not fit is not run
  double seconds = 180;              // for all of it; the shorter lengths come first
  // Repeats of a step in a round take at most about so long, less where so many steps would not fit
  // twice into the time there is; but of each, however long it takes, two count.
  double probe_seconds = 0.4;
  std::filesystem::path file = {};  // grows while it is measured; one that is there is gone on with
  std::shared_ptr<Backend> backend = local_backend();
  c10::Device device = c10::Device(c10::kCPU);

  std::function<void(const ProfileProgress&)> progress = {};
  const std::atomic<bool>* stop = nullptr;  // ends after the probe under way
};

// Times that each step is measured, where there is time: all once, then all again, so that a
// machine that is slow for a while is not taken for a length that is.
constexpr int kProfileRounds = 3;

// Steps of the same are rounds of one, each with another verb of the MLP.
using StepKey = std::tuple<std::string, std::string, int, std::int64_t, bool>;
StepKey step_key(const StepProbe& step);

// Doublings from 64 tokens up to the longest document.
std::vector<std::int64_t> profile_lengths(std::int64_t longest);

// Of the sample with most rows a quarter of every dim, half of it, and all; of large samples an
// eighth and a sixteenth, too, since time or memory may end a profile before the largest.  Fewer
// where these are no three sizes.
std::vector<DimSizes> profile_sizes(const Model& model, const BatchSizes& samples);

// The header that a profile made now would have: what a profile or costs file has to agree with.
ProfileHeader profile_header(
    const Model& model, int ranks, Dtype dtype, Backend& backend, c10::Device device);
ProfileHeader profile_header(const ProfileRequest& request);

// Runs a model of at most two of `model`'s layers under every strategy and recompute level at every
// length, with random tokens and weights, several times each; in groups of 2, 4, ... ranks, as many
// side by side as fill the ranks, those strategies that such groups can run, with nothing made
// again.  Those that gather weights run in two ways: with weights whole while a step lasts, which
// tells what they compute from what they gather, and gathering them in each micro-batch.  Or of a
// video or protein model the planned layout and every rival's, with nothing made again and with
// all.  Then collectives, kernels and the optimizer.  Every process calls it; the one that leads
// (backend.h) writes the file and gets the profile.  Throws what read_profile() and ProfileWriter
// throw.
Profile profile(const ProfileRequest& request);

}  // namespace paradyse
