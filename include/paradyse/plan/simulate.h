// Plays a plan on a described cluster: when every op of every rank runs, what waits for what, and
// what memory holds.  docs/internals/simulate.md lists what is assumed.
//
// Words.  A rank has two *streams*, compute and communication, each of which does one thing after
// the other.  A *meeting* is what ranks of a group or of a weight domain do together: it begins
// when all of them are there and their communication streams are free.  Ops, bytes and memory are
// those of the walk (schedule.h) that the executor follows and of the folds (cost.h); seconds come
// from the cluster.  Next: src/plan/simulate/choices.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "paradyse/plan/cluster.h"
#include "paradyse/plan/cost.h"
#include "paradyse/plan/model.h"
#include "paradyse/plan/plan.h"

namespace paradyse {

enum class Lane { compute, communication };

// What one lane of a rank does for a while.
struct Span {
  enum class What { forward, recompute, backward, prefetch, offload, fetch, step };

  int rank = 0;
  std::size_t micro_batch = 0;
  std::size_t part = 0;  // in the group's timeline
  int op = -1;           // in the part's program; -1: no op
  What what = What::forward;
  Lane lane = Lane::compute;
  double begin = 0;
  double end = 0;
  std::int64_t layer = -1;  // of the part; -1: none
  std::string name = {};    // "attention linear", "optimizer"

  friend bool operator==(const Span&, const Span&) = default;
};

// A rank holds so many bytes from `at` on.
struct MemorySample {
  int rank = 0;
  double at = 0;
  std::int64_t bytes = 0;
};

// Who is told what ranks do, in the order of each rank's streams.  Of ranks that share a result
// (SimulatedRank::as) only the one that was simulated is told of.
struct SimulationObserver {
  std::function<void(const Span& span)> span = {};
  std::function<void(const MemorySample& sample)> memory = {};
};

struct SimulatedRank {
  int as = 0;  // the rank that was simulated for this one
  // Until the end of the last micro-batch: seconds = compute + exposed + idle.
  double seconds = 0;
  double compute_seconds = 0;
  double communication_seconds = 0;  // its communication lane is busy
  double exposed_seconds = 0;        // the compute lane waits while the other is busy
  double idle_seconds = 0;           // both wait for other ranks
  Traffic traffic;                   // of the micro-batches: equals the folds
  // Of its bytes, by the node of who gets them (Cluster::node), its own included.
  std::map<int, std::int64_t> bytes_to_node = {};
  double model_flops = 0;  // without recomputation
  PredictedBytes bytes;    // at the peak of its fullest micro-batch
  std::int64_t offloaded_bytes = 0;
  std::int64_t missing_bytes = 0;  // to fit into its device's memory; 0: it fits

  [[nodiscard]] std::int64_t peak_bytes() const {
    return bytes.static_bytes + bytes.saved + bytes.transient;
  }
};

// A micro-batch as its groups saw it.
struct SimulatedMicroBatch {
  double seconds = 0;  // from when the last rank ended the one before until the last ends this
  // [group of the plan] Of its busiest rank, without what it waited for others: what it computed
  // and the communication that it waited for.
  std::vector<double> group_seconds = {};

  // The first of those that were busy longest; pre: there are groups.
  [[nodiscard]] std::size_t slowest() const;
};

// Shares of all ranks' time.
struct TimeShares {
  double compute = 0;
  double communication = 0;  // some of it beside compute
  double exposed = 0;
  double idle = 0;
};

struct Simulation {
  double seconds = 0;            // of the iteration: micro-batches, then
  double gradient_seconds = 0;   //   gradients of vectors and between replicas of domains, and what
                                 //   a sharding group exchanges once a step,
  double optimizer_seconds = 0;  //   and the update
  std::int64_t tokens = 0;
  double model_flops = 0;
  double peak_flops_per_second = 0;  // of all devices
  std::vector<SimulatedRank> ranks;
  std::vector<SimulatedMicroBatch> micro_batches = {};

  [[nodiscard]] double tokens_per_second() const;
  [[nodiscard]] double model_utilisation() const;  // MFU
  [[nodiscard]] TimeShares shares() const;
  [[nodiscard]] std::int64_t bytes_sent() const;  // by all ranks
  [[nodiscard]] bool fits() const;
  // The rank that misses most bytes, or holds most of its device's memory.
  [[nodiscard]] std::size_t fullest() const;
};

// Bytes of all ranks' traffic by the links that they take.
struct LinkBytes {
  std::int64_t inside_nodes = 0;
  std::int64_t between_nodes = 0;
  std::vector<std::vector<std::int64_t>> by_node = {};  // [from][to]

  friend bool operator==(const LinkBytes&, const LinkBytes&) = default;
};
// Post: both sums, and all of `by_node`, add up to bytes_sent().  Pre: simulated on this cluster.
LinkBytes link_bytes(const Simulation& simulation, const Cluster& cluster);

struct SimulationOptions {
  Precision precision = {.activation = 2, .statistic = 4};
  bool training = true;  // else forward passes alone
  // Groups without shares whose devices are unlike get them: with_proportional_shares.
  bool proportional_tokens = true;
  // Nothing overlaps: a micro-batch takes, in each weight domain, its exchanges of weights and its
  // slowest group, of that the slowest rank, one op after the other.  Bytes and memory are the
  // same. The observer is told nothing.
  bool additive = false;
  SimulationObserver observer = {};

  [[nodiscard]] Keeps keeps() const { return training ? Keeps::optimizer : Keeps::weights; }
};

// Plays all micro-batches one after the other, then the end of the step.  Deterministic.
//
// Weight domains that do the same (equal groups, documents, programs, devices and places in their
// nodes) are simulated once; so are ranks' memories where all pieces are of equal size.
// Throws std::invalid_argument for a plan of another number of ranks or layers than the cluster or
// the model has, for one that problems() refuses, for a document longer than the model's learned
// positions, for a weight domain of more than 512 ranks.
Simulation simulate(
    const Plan& plan,
    const Model& model,
    const Cluster& cluster,
    const SimulationOptions& options = {});

// The plan with proportional_shares for the groups of unlike devices that have none, in each weight
// domain where that makes it fit, or faster; else as it is.  Throws what simulate() throws.
Plan with_proportional_shares(
    const Plan& plan,
    const Model& model,
    const Cluster& cluster,
    const SimulationOptions& options = {});

// Shares that add up to 1, of ranks that need `seconds_per_share[r]` for each: inverse to them, but
// none above `largest_share[r]`; what a rank cannot take the others share likewise.  Where all
// limits together are below 1 the shares are as the limits.
std::vector<double> proportional_shares(
    std::span<const double> seconds_per_share, std::span<const double> largest_share);

// By which shares a group of these ranks cuts its documents so that all are done together and hold
// no more than their devices' memory, if that can be; empty where the devices are alike or even
// cuts are as good.  Compute seconds and peak bytes come from folds; of a plan's messages only
// whether weights are whole while a step lasts says something.
std::vector<double> proportional_shares(
    const std::vector<int>& ranks,
    const std::vector<std::int64_t>& lengths,
    const std::vector<LayerChoice>& layers,
    int weight_domain,
    const Model& model,
    const Cluster& cluster,
    const SimulationOptions& options = {},
    Messages messages = {});

// Spans and memory as a Chrome trace (Perfetto opens it): a process for each rank below
// `most_ranks`, with a track for each lane and a counter for memory.
class SimulationTrace {
 public:
  // By which a file of one is known again: it begins so.
  static constexpr const char* kMark = R"({"otherData":{"made_by":"paradyse-simulate"},)";

  // Ends before the first event that would make it larger than `most_bytes`.
  explicit SimulationTrace(int most_ranks = 16, std::size_t most_bytes = 5000000)
      : most_ranks_(most_ranks), most_bytes_(most_bytes) {}
  // Outlived by this.
  SimulationObserver observer();
  [[nodiscard]] std::string json() const;
  [[nodiscard]] bool was_cut() const { return cut_; }

 private:
  void add(const std::string& event);

  int most_ranks_;
  std::size_t most_bytes_;
  bool cut_ = false;
  std::vector<bool> named_;  // [rank]
  std::string events_;
};

}  // namespace paradyse
