// The ranks of one weight domain on their way through micro-batches: clocks, meetings, sums.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/simulate.h"
#include "src/plan/simulate/memory_trail.h"
#include "src/plan/simulate/op_cost.h"

namespace paradyse {

// A call of the walk that takes time.
struct Instruction {
  enum class Kind { prefetch, forward, begin, adjoint, offload, fetch };  // begin: of an adjoint
  Kind kind = Kind::forward;
  std::size_t part = 0;
  int op = -1;             // or
  ValueId value = -1;      // of an offload or fetch
  bool recompute = false;  // a forward of the backward pass

  [[nodiscard]] bool goes_back() const { return kind == Kind::begin || kind == Kind::adjoint; }
};
std::vector<Instruction> instructions(const Timeline& timeline);

// A group of a micro-batch, ready to run.
struct GroupRun {
  Timeline timeline;
  GroupSeats seats;
  std::vector<Instruction> instructions;
  std::vector<std::shared_ptr<const MemoryTrail>> memory;  // [group rank]; null: nobody asks
};

class Timetable {
 public:
  // Outlived by all that it is given.
  Timetable(
      const Cluster& cluster,
      const SimulationOptions& options,
      int domain_first,
      int domain,
      ExchangeCosts& exchange_costs);

  // Plays the groups side by side, from where each rank is; their ranks compute so many times as
  // fast as their devices say.
  void run(
      std::size_t micro_batch,
      const std::vector<GroupRun>& groups,
      const std::vector<double>& speeds);

  // [domain rank]: times, traffic and operations so far.
  [[nodiscard]] std::vector<SimulatedRank> ranks() const;

 private:
  // What some ranks do together.
  struct JointOp {
    int needed = 0;
    double seconds = 0;
    double ready = 0;                              // of the last rank that came
    std::vector<int> members;                      // domain ranks that came
    std::vector<const Instruction*> instructions;  // of each of them
    std::vector<int> waiting;                      // those that cannot go on before it is over
    const GroupRun* group = nullptr;               // rings: whose
    const OpCost* ring = nullptr;
    bool over = false;
    double end = 0;
  };

  struct Clock {
    double compute = 0;                                // when the compute lane is free
    double communication = 0;                          // the other
    std::vector<std::pair<double, double>> exchanges;  // that may end later than `compute`
    SimulatedRank sums;

    // Within a micro-batch.
    const GroupRun* group = nullptr;
    double speed = 1;  // times that of its device
    std::size_t group_rank = 0;
    std::size_t at = 0;               // instruction
    int stage = 0;                    // of it
    std::size_t domain_meetings = 0;  // so far
    // By part and op: what is asked for or begun, and its rest still to come; null: nobody meets.
    std::map<std::pair<std::size_t, int>, JointOp*> under_way;
    JointOp* here = nullptr;  // what it waits in
    double began = 0;         // the instruction
  };

  struct RingSeat {
    int rank = 0;  // of the domain
    std::size_t group_rank = 0;
    const Link* to_next = nullptr;
  };

  // Layers that run alike share their ops' costs.
  struct CostsOfOps {
    std::map<
        std::pair<const ScheduledPart::Body*, std::pair<int, bool>>,
        std::unique_ptr<const OpCost>>
        of_op;
    std::vector<const OpCost*> of_instruction;  // null: not asked for yet
  };

  const OpCost& cost(const GroupRun& group, std::size_t at);
  [[nodiscard]] bool meets(int rank);
  JointOp* come(int rank, bool wait);
  bool advance(int rank);  // one instruction further; false: it waits
  void expect_same(int rank, const JointOp& meeting, bool as_much) const;
  void finish(JointOp& meeting);
  void finish_ring(JointOp& meeting);
  void shift(
      const std::vector<RingSeat>& seats,
      const RingBlocks& ring,
      const std::vector<std::int64_t>& bytes,
      std::size_t behind,
      const Instruction& instruction);
  void ring_round(
      const std::vector<RingSeat>& seats, const OpCost& cost, const Instruction& instruction);
  void send(int rank, const OpCost& cost);
  void compute(int rank, double of_device, const Instruction& instruction);
  void exchange(int rank, double begin, double end, const Instruction& instruction);
  void wait_until(int rank, double time);
  void done(int rank);  // with the instruction
  void tell(int rank, Lane lane, double begin, double end, const Instruction& instruction) const;
  void tell_memory(int rank, double at, std::int64_t bytes) const;
  bool waits_for_others(int rank);
  bool begin(int rank);
  Clock& clock(int rank) { return clocks_[idx(rank)]; }

  const Cluster& cluster_;
  const SimulationOptions& options_;
  int domain_first_;
  int domain_;
  std::size_t micro_batch_ = 0;
  std::vector<Clock> clocks_;
  std::vector<int> ready_;            // ranks that can go on
  const GroupRun* groups_ = nullptr;  // of the micro-batch
  std::vector<CostsOfOps> costs_;     // [group]
  ExchangeCosts& exchange_costs_;
  std::vector<std::unique_ptr<JointOp>> over_domain_;
  std::map<std::pair<const GroupRun*, std::pair<std::size_t, int>>, JointOp> of_groups_;
  std::vector<std::pair<double, double>> shifts_;  // [ring seat] the last: begin and end
  std::vector<double> shifted_;
};

}  // namespace paradyse
