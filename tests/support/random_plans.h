// Random plans of every kind that the checker accepts, and edits that make nonsense of them.
// Nothing but the arguments decides what comes out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "paradyse/plan/plan.h"
#include "src/plan/model/text/text_shape.h"
#include "tests/support/equality.h"

namespace paradyse::test {

// Batches for such plans, of causal models and a masked LM, with dropout where a model has one:
// sizes that few numbers of ranks divide, documents shorter than groups, and one without a token.
std::vector<Case> group_cases();

// All documents, in any number of micro-batches.  In a weight domain (all ranks, or a part of them
// that divides them) a micro-batch is one group under any strategies, or groups of any sizes and of
// any ranks that gather weights, whose layers, recompute levels, options, shares and placements
// differ; a rank without documents is idle.
Plan random_plan(
    const TextShape& model,
    const std::vector<std::int64_t>& lengths,
    int ranks,
    std::uint64_t seed);

// A plan that somebody changed in one place, sensibly or not.
struct Edit {
  Plan plan;
  std::string what;
};
Edit random_edit(Plan plan, std::uint64_t seed);

}  // namespace paradyse::test
