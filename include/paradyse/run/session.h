// What a rank has for as long as it runs a model, and the playing of plans on it: a global batch,
// micro-batch after micro-batch, as the plan says.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "paradyse/plan/dtype.h"
#include "paradyse/plan/plan.h"
#include "paradyse/run/accountant.h"
#include "paradyse/run/communicator.h"
#include "paradyse/run/detail/item.h"
#include "paradyse/run/weights.h"

namespace paradyse {

class Breakdown;
class PartTimes;
class Trace;

// From so many tokens on cuDNN, a document at a time, is taken for faster than flash where nobody
// has measured it (paradyse profile): an estimate, no GPU has run either.
inline constexpr std::int64_t kAttentionDenseFrom = 4096;

struct SessionOptions {
  Dtype dtype = Dtype::float32;  // of weights and what is computed (parameter_types)
  int weight_domain = 0;         // ranks that hold one copy of the model together; 0: all
  bool gradients = true;         // else evaluation alone
  Masters masters = Masters::none;
  std::int64_t memory_bytes = 0;  // budget of this rank; 0: no limit
  c10::Device device = c10::Device(c10::kCPU);
  // On a GPU, causal documents of at least so many tokens go through cuDNN.
  std::int64_t attention_dense_from = kAttentionDenseFrom;
  // BatchResult::part_seconds are measured of the first so many batches with a backward pass, and
  // then of each so-manieth; 0: of none.  On a GPU each takes events in its stream.  Not beside
  // `part_times`.
  std::int64_t times_parts = 0;
  // Where it is noted what the time goes to; each may be absent, and outlives the session.
  Trace* trace = nullptr;
  Breakdown* breakdown = nullptr;
  PartTimes* part_times = nullptr;
};

// What a plan is played on.
struct Batch {
  // Those of plan.lengths, in its order.  Token ids must be inside the vocabulary, and samples as
  // check_sample() has them (whoever reads data checks it).
  std::span<const Item> items;
  // How many tokens of all documents are scored against a label that counts.  With it a rank needs
  // only the documents that it has a part of: others may be empty.  None: they are counted.
  std::optional<std::int64_t> predicted_tokens = {};
  std::uint64_t dropout_seed = 0;  // of training's dropout, where the model has one
  // Of a model that predicts an input: where it puts its predictions, a tensor for each sample in
  // the shape of that input, float64 on the host.  On every rank; empty: nobody asks.
  std::span<const at::Tensor> predictions = {};
};

struct BatchResult {
  double loss = 0;  // mean over the predicted tokens of the global batch; 0 where there are none
  std::int64_t predicted_tokens = 0;        // those scored against a label that counts
  std::vector<double> loss_sums;            // [document of the plan], over all ranks
  std::vector<std::int64_t> counts;         // [document of the plan], over all ranks
  std::int64_t saved_bytes = 0;             // of this rank: the largest of its micro-batches
  std::vector<double> micro_batch_seconds;  // on this rank, waiting for others included
  // Of these, inside operations of its weight domain: sending, and waiting for slower ranks of it.
  // The last has what is exchanged once a step, too, where weights are whole during it.
  std::vector<double> domain_seconds;
  // [micro-batch] Of these, seconds of each of costed_parts() of its group's program, and 0 behind
  // them up to those of the plan's longest program; none: they were not measured.
  std::vector<std::vector<double>> part_seconds;
  // Of all of them outside operations of any kind; 0 on devices whose work the host does not wait
  // for.
  double computed_seconds = 0;
  double switching_seconds = 0;     // of this rank: agreeing on the plan and having its programs
  std::int64_t programs_built = 0;  // of this rank: the others it still had
  std::string plan_sha256;          // hash() of the plan
};

// The loss of a batch is no number.
class NotFinite : public std::runtime_error {
 public:
  explicit NotFinite(const std::string& what, std::vector<std::int64_t> documents = {})
      : std::runtime_error(what), documents_(std::move(documents)) {}
  // Of the plan, those whose own loss is no number; none where that is not known.
  [[nodiscard]] const std::vector<std::int64_t>& documents() const { return documents_; }

 private:
  std::vector<std::int64_t> documents_;
};

// Of one rank; made, used and destroyed on its thread, on which no other session is made meanwhile.
// As long as it lives, tensors made on this thread are the rank's: they count into memory() and lie
// and compute where its device says.
class RankSession {
 public:
  // Allocates, uninitialised, what this rank stores of the model.  Throws std::invalid_argument for
  // a weight domain that does not divide the ranks; OutOfMemory.
  RankSession(Communicators& communicators, const Model& model, const SessionOptions& options = {});
  ~RankSession();
  RankSession(const RankSession&) = delete;
  RankSession& operator=(const RankSession&) = delete;

  [[nodiscard]] int rank() const;
  [[nodiscard]] Communicators& communicators();
  [[nodiscard]] Communicator& world();
  // This rank's weight domain, and the ranks with its place in other domains.
  [[nodiscard]] Communicator& domain();
  [[nodiscard]] Communicator& replicas();
  [[nodiscard]] Parameters& parameters();
  [[nodiscard]] Accountant& memory();

  // Rank 0's plan, on all ranks; nothing where it has none.  What the others bring is not looked
  // at, and of predictions they get the seconds of the plan.  Every rank calls this.
  std::optional<Plan> broadcast(std::optional<Plan> mine);

  // Every rank calls this with the same plan and batch.  Programs of the last few plans are kept,
  // so that a plan which comes again is not built again (src/run/execute/kept_programs.h).  With
  // `backward` the gradient of loss_scale times the mean token loss is added to the parameters'
  // gradients, summed over all ranks. Dropout is that of the model, and on only with `backward`.
  // Throws std::invalid_argument for a plan of another number of ranks or another weight domain,
  // items of another number or size than the plan's, labels of another number than tokens, tokens
  // of a masked LM without labels, and a document longer than the positions that the model has
  // learned; CommunicatorError when the ranks' plans differ (hashes are compared first), and
  // NotFinite, on all ranks, naming the first document to blame, when the loss is no number.
  BatchResult play(const Plan& plan, const Batch& batch, bool backward, double loss_scale = 1);

  // Notes in the trace, where there is one, what this rank did from `begin` until now.
  void note(const char* what, const char* category, std::chrono::steady_clock::time_point begin);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace paradyse
