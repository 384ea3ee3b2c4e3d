// DataZ: a group of one rank runs whole documents; weights gathered (ZeRO-3).
#include "paradyse/plan/writer.h"
#include "src/plan/strategy/table.h"

namespace paradyse {

namespace {

// On one rank the redistributions of Ulysses are no ops: what is left is this strategy.
Program build_data_z(const Task& task) { return ulysses_z().build(task); }

}  // namespace

Strategy data_z() {
  return {
      .kind = "attention",
      .name = "DataZ",
      .verb = Verb::gather,
      .one_rank = true,
      .build = build_data_z,
      .summary = "a rank runs whole documents; weights are gathered"};
}

}  // namespace paradyse
