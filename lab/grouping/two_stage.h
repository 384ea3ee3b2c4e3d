// The two stages of DHP (two_stage.cc) for one micro-batch.
#pragma once

#include <optional>
#include <vector>

#include "src/plan/search/grouping/packing.h"

namespace paradyse {

// The documents, longest first, in one micro-batch; none where the ranks do not suffice.
std::optional<OpenMicroBatch> two_stages(
    const GroupingTask& task, const std::vector<int>& documents);

}  // namespace paradyse
