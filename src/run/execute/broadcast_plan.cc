#include "src/run/execute/broadcast_plan.h"

#include "src/run/execute/gather.h"

namespace paradyse {

std::optional<Plan> broadcast_plan(const std::optional<Plan>& mine, Communicator& world) {
  const std::string text = broadcast_text(mine ? to_json(*mine) : "", "plan", world);
  if (world.rank() == 0 || text.empty()) {
    return mine;
  }
  return plan_from_json(text, "rank 0's plan");
}

}  // namespace paradyse
