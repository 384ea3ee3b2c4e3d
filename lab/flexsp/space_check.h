// Is this plan one of the space of the FlexSP publication (arXiv 2412.01523), and does it take what
// it says?  Beside problems(plan), and apart from the planner: everything is worked out from the
// plan and the published coefficients alone.
#pragma once

#include <string>
#include <vector>

#include "lab/flexsp/presets.h"
#include "paradyse/plan/plan.h"

namespace paradyse {

// What puts a plan outside the space, each a sentence with its JSON path:
//   - a group has 1, 2, 4, ... ranks that follow one another, the first a multiple of their number
//     (what a buddy tree hands out)
//   - it runs UlyssesZ with gathered weights, of one rank DataZ, and nothing is recomputed, waits
//     in host memory, lies otherwise or is cut unevenly
//   - weights are cut over all ranks
// Idle ranks are allowed.  Documents and programs that are not there are left to problems().
std::vector<std::string> flexsp_space_problems(const Plan& plan);

// What a preset says beside that:
//   - model and cluster are called like the presets, without fingerprints; layers and ranks are
//     theirs; no document is empty or longer than the context
//   - the documents of a group find room on it
//   - where seconds are predicted they are, to a part in 10^6,
//       of a group        sum of its t(s, d), without b1
//       of a micro-batch  b1 + that of its slowest group
//       of the plan       the sum of those
//     and no lower bound is above the last
std::vector<std::string> flexsp_preset_problems(const Plan& plan, const FlexspSetting& setting);

// The same of the space full, as presets.h extends the publication:
//   - a group has 1, 2, ... ranks inside one node of eight, or whole nodes, that follow one another
//   - all its layers are alike: of one rank DataZ, else UlyssesZ or MegatronCZ, beyond a node also
//     USP with Ulysses inside nodes; weights are gathered; nothing is recomputed, or all, or all
//     but the attention output (and the MLP); nothing waits in host memory, lies otherwise or is
//     cut unevenly
//   - weights are cut over all ranks or over each node
// On a cluster that a file describes (cluster_space.h) nodes are its own, and levels are those that
// a model has, `light` among them.
struct FullSpace {
  int node = kFlexspNode;  // ranks of one; 0: not known, and what follows from it is not asked
  bool light = false;
};
std::vector<std::string> flexsp_full_space_problems(const Plan& plan, const FullSpace& space = {});

// What a preset says beside that: as flexsp_preset_problems(), with the seconds and the room of a
// group's core and level; with options.overlapped a micro-batch takes the longer of what lies
// beside its slowest group and that.  The plan's weights are cut over nodes where
// options.node_domain, else over all ranks.
std::vector<std::string> flexsp_full_preset_problems(
    const Plan& plan, const FlexspSetting& setting, const FlexspFull& options);

}  // namespace paradyse
