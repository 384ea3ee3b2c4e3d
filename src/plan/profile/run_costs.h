// The costs that a run plans by: where they are, and whether they are good for it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/config.h"
#include "src/plan/profile/fit.h"
#include "src/plan/search/layers/layer_costs.h"

namespace paradyse {

// Where `paradyse profile` and `paradyse fit` put what is for this model, machine, number of ranks,
// backend and type, unless told otherwise: in output.folder's costs/.
std::filesystem::path profile_file(const RunConfig& config, const ProfileHeader& header);
std::filesystem::path costs_file(const RunConfig& config, const ProfileHeader& header);

// Where a run that goes on had its costs, which it may have left behind when it was moved.
struct FormerCosts {
  std::vector<std::filesystem::path> folders = {};
  std::string fingerprint = {};  // of those that it went by; "": of none
};
// The files of "auto" and "measure", the first that is there counts: in output.folder's costs/, and
// where the run had them.
std::vector<std::filesystem::path> costs_files(
    const RunConfig& config, const ProfileHeader& header, const FormerCosts& former);

struct FoundCosts {
  Costs costs;
  std::filesystem::path file;
};
// By costs.file; none for "none", and for "auto" and "measure" where there is no file.  Of several
// the run's own.  Throws std::invalid_argument, naming what differs and what to do, for costs of
// another machine, model, number of ranks, backend, device or type; and what read_costs throws.
std::optional<FoundCosts> costs_of(
    const RunConfig& config, const ProfileHeader& header, const FormerCosts& former = {});

// What to tell of costs that were measured for something else than `asked` and serve all the same:
// "" where nothing differs.  Another machine's do; those of another model or number of ranks where
// the model that plans of `model` go by goes by counted work.  Throws std::invalid_argument, naming
// what differs and what to do, for those that do not.  Backend, device and cores are the costs'.
std::string note_of_other(
    const std::filesystem::path& file, const Costs& costs, ProfileHeader asked, const Model& model);

// Plans for `task`, which is complete otherwise, go by these costs.
void go_by(const Costs& costs, PlanningTask& task);

}  // namespace paradyse
