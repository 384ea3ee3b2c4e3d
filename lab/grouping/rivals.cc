#include "lab/grouping/rivals.h"

namespace paradyse {

void add_rivals() {
  static const bool added = [] {
    add_grouping_planners(
        {published_planner(),
         published_as_written_planner(),
         sorted_planner(),
         best_fit_planner(),
         karmarkar_karp_planner(),
         megatron_planner(),
         two_stage_planner()});
    return true;
  }();
  static_cast<void>(added);
}

}  // namespace paradyse
