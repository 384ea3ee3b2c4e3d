// Parts of timelines that were built before: a planner asks for many timelines of one group, whose
// layers run mostly the same.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <utility>

#include "paradyse/plan/strategy.h"

namespace paradyse {

// By the model's part, and what it was told.
using BuiltParts =
    std::map<std::pair<const Part*, PartChoice>, std::shared_ptr<const ScheduledPart::Body>>;

// timeline(), taking parts from `built` and leaving there what is new.  All that were built have
// the same arguments, the layers excepted.
Timeline timeline(
    const Model& model,
    const Documents& documents,
    int domain,
    std::span<const LayerChoice> layers,
    bool keep,
    Messages messages,
    BuiltParts& built);

}  // namespace paradyse
