// The machines that the ranks are on as a cluster that plans can be simulated on: `simulate
// --cluster measured`.
#pragma once

#include <memory>

#include "paradyse/plan/cluster.h"
#include "paradyse/plan/model.h"
#include "paradyse/run/backend.h"

namespace paradyse {

// machine_cluster() of the speeds that measure_machine() finds for a model of this shape, with the
// links of the backend's own collectives, in some seconds; over several nodes with those inside
// and between them (links.h).
// Every process of the backend calls it; the numbers are whole in the one that leads.
Cluster measured_cluster(const Model& model, int ranks, const std::shared_ptr<Backend>& backend);

}  // namespace paradyse
