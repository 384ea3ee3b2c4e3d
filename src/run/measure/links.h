// What passes between the ranks of a node, and between nodes.
#pragma once

#include <optional>

#include <ATen/ATen.h>

#include "paradyse/plan/detail/planning_task.h"
#include "paradyse/run/backend.h"

namespace paradyse {

// Bytes a second that a rank sends to others of its node, and to those at its place on other nodes,
// while all do; latencies of the same; and whether one that sends to another node alone is that
// much faster.  In about a second; nothing where there is one node.  Every
// process calls it; the one that leads has numbers that count.
std::optional<NodeLinks> measure_links(int ranks, Backend& backend, c10::Device device);

}  // namespace paradyse
