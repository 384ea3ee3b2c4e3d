// Plays a plan: runs a global batch on this rank, micro-batch after micro-batch, as the plan says.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "paradyse/plan/plan.h"
#include "paradyse/run/accountant.h"
#include "paradyse/run/communicator.h"
#include "paradyse/run/weights.h"

namespace paradyse {

class Breakdown;
class PartTimes;
class Trace;

// What a rank has for as long as it runs.
struct RankResources {
  Communicators* communicators = nullptr;
  Accountant* memory = nullptr;
  Trace* trace = nullptr;           // may be absent
  Breakdown* breakdown = nullptr;   // may be absent
  PartTimes* part_times = nullptr;  // of the last micro-batch; may be absent

  [[nodiscard]] Communicator& world() const { return communicators->world(); }
  // This rank's weight domain, and the ranks with its place in other domains.
  [[nodiscard]] Communicator& domain(int weight_domain) const;
  [[nodiscard]] Communicator& replicas(int weight_domain) const;
};

// The loss of a batch is no number.
class NotFinite : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct BatchResult {
  double loss = 0;  // mean over the predicted tokens of the global batch; 0 where there are none
  std::int64_t predicted_tokens = 0;        // those scored against a label that counts
  std::vector<double> loss_sums;            // [document of the plan], over all ranks
  std::vector<std::int64_t> counts;         // [document of the plan], over all ranks
  std::int64_t saved_bytes = 0;             // of this rank: the largest of its micro-batches
  std::vector<double> micro_batch_seconds;  // on this rank, waiting for others included
  double switching_seconds = 0;  // of this rank: agreeing on the plan and building its programs
};

// What comes with the documents of a batch.
struct BatchOptions {
  // For every document a label for every token, unshifted: token i is scored against label i of a
  // masked LM, else against label i + 1.  Negative ones do not count.  Empty, which a masked LM
  // does not take: the documents' tokens.
  std::span<const std::vector<std::int32_t>* const> labels = {};
  std::uint64_t dropout_seed = 0;  // of training's dropout, where the model has one
};

// Every rank calls this with the same plan and documents (those of plan.lengths, in its order).
// With `backward` the gradient of loss_scale times the mean token loss is added to the parameters'
// gradients, summed over all ranks.  Dropout is that of the parameters' shape, and on only with
// `backward`.
// Token ids must be inside the vocabulary (whoever reads documents checks it).
// Throws std::invalid_argument for a masked LM without labels, labels of another number than the
// documents, and a document longer than the positions that the model has learned; CommunicatorError
// when the ranks' plans differ (hashes are compared first), and NotFinite, on all ranks, naming the
// first document to blame, when the loss is no number.
BatchResult play(
    const Plan& plan,
    std::span<const std::vector<std::int32_t>* const> documents,
    const RankResources& rank,
    Parameters& parameters,
    bool backward,
    double loss_scale = 1,
    const BatchOptions& options = {});

// The timeline and seat of world rank `rank` in a micro-batch; `group` gives the group's index.
struct RankPart {
  std::size_t group = 0;
  Seat seat;
  Timeline timeline;
};
RankPart rank_part(
    const Plan& plan,
    const PlanMicroBatch& micro_batch,
    const ModelShape& model,
    int rank,
    bool keep);

}  // namespace paradyse
