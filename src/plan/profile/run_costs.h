// The costs that a run plans by: where they are, and whether they are good for it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "paradyse/plan/config.h"
#include "src/plan/profile/fit.h"
#include "src/plan/search/layers/layer_costs.h"

namespace paradyse {

// Where `paradyse profile` and `paradyse fit` put what is for this model, machine, number of ranks,
// backend and type, unless told otherwise: in output.folder's costs/.
std::filesystem::path profile_file(const RunConfig& config, const ProfileHeader& header);
std::filesystem::path costs_file(const RunConfig& config, const ProfileHeader& header);

// By costs.file; none for "none", and for "auto" and "measure" where there is no file.  Throws
// std::invalid_argument, naming what differs and what to do, for costs of another machine, model,
// number of ranks, backend, device or type; and what read_costs throws.
std::optional<Costs> costs_of(const RunConfig& config, const ProfileHeader& header);

// What to tell of costs that were measured for something else than `asked` and serve all the same:
// "" where nothing differs.  Another machine's do; those of another model or number of ranks where
// the default model goes by counted work.  Throws std::invalid_argument, naming what differs and
// what to do, for those that do not.  Backend, device and cores are the costs'.
std::string note_of_other(
    const std::filesystem::path& file, const Costs& costs, ProfileHeader asked);

// Plans for `task`, which is complete otherwise, go by these costs.
void go_by(const Costs& costs, PlanningTask& task);

}  // namespace paradyse
