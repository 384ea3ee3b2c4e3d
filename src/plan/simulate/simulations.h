// Many simulations on one cluster: the tables of exchanges that lie alike are made once for all.
#pragma once

#include "paradyse/plan/simulate.h"
#include "src/plan/simulate/exchange_cost.h"

namespace paradyse {

// As the functions of simulate.h; `exchange_costs` are the cluster's.
Simulation simulate(
    const Plan& plan,
    const Model& model,
    const Cluster& cluster,
    const SimulationOptions& options,
    ExchangeCosts& exchange_costs);
Plan with_proportional_shares(
    const Plan& plan,
    const Model& model,
    const Cluster& cluster,
    const SimulationOptions& options,
    ExchangeCosts& exchange_costs);

}  // namespace paradyse
