// What a rank is while ops run: who it talks to, where its memory is counted, what is noted.
#pragma once

#include <limits>

#include "paradyse/plan/program.h"
#include "paradyse/run/accountant.h"
#include "paradyse/run/communicator.h"
#include "src/run/kernels/kernels.h"

namespace paradyse {

class Breakdown;
class PartTimes;
class Trace;

struct RankContext {
  Seat seat;
  Communicator* group = nullptr;   // of the micro-batch's group
  Communicator* domain = nullptr;  // of the weight domain
  Accountant* memory = nullptr;
  const Kernels* kernels = nullptr;  // of its device
  Trace* trace = nullptr;            // may be absent
  int world_rank = 0;                // names the rank in the trace
  Breakdown* breakdown = nullptr;    // may be absent
  PartTimes* part_times = nullptr;   // may be absent
  // tokens; SessionOptions
  std::int64_t attention_dense_from = std::numeric_limits<std::int64_t>::max();
};

}  // namespace paradyse
