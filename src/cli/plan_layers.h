// What `paradyse plan layers` is asked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/cli/commands.h"
#include "src/plan/search/layers/layer_planner.h"

namespace paradyse::cli {

struct PlanLayersOptions {
  std::string costs;  // a file of costs of a layer, or
  std::int64_t layers = 0;
  std::string model;  // a model, and
  std::int64_t length = 0;
  std::string fitted;  // costs of `paradyse fit`; "": a closed form of this machine
  int ranks = 4;
  std::string dtype = "float32";
  std::string attention = "auto";
  std::string mlp = "auto";
  std::string recompute = "auto";
  bool offload = false;
  bool optimizer_offload = false;
  std::string capacity;  // bytes
  std::string planner = "exact";
  bool explain = false;
  std::string out;  // plan file to write; "": none
};

// The layers of a model for one document on all ranks.
int plan_layers_of_model(const PlanLayersOptions& options, const Common& common);

// Why a plan has no layer of this candidate.
std::string why_not(const RejectedWay& way);
// A table of them, the nearest first; all of them with --verbose.
void print_rejected(
    const std::vector<RejectedWay>& rejected,
    const std::vector<LayerCost>& ways,
    const Common& common);

}  // namespace paradyse::cli
