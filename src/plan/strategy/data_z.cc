// DataZ: a group of one rank runs whole documents; weights gathered (ZeRO-3).
#include "paradyse/plan/writer.h"
#include "src/plan/strategy/builders.h"

namespace paradyse {

// On one rank the redistributions of Ulysses are no ops: what is left is this strategy.
Program data_z_attention(const Task& task) {
  Program program = ulysses_z_attention(task);
  program.strategy = "DataZ";
  return program;
}

}  // namespace paradyse
