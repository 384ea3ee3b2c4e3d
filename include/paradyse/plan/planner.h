// Finds plans.  Deterministic, all on the plan side.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/layer_costs.h"
#include "paradyse/plan/plan.h"
#include "paradyse/plan/plan_prediction.h"

namespace paradyse {

// A plan of one micro-batch in which all documents run as `layers` says on all ranks; with a
// one-rank strategy, documents are dealt to the ranks, longest first to the least loaded.
Plan uniform_plan(
    const ModelShape& model,
    std::vector<std::int64_t> lengths,
    int ranks,
    const std::vector<LayerChoice>& layers);

// The program of a document that all ranks share.
struct DocumentPlan {
  LayerProgram program;
  double seconds = 0;    // forward and backward, predicted
  PredictedBytes bytes;  // of the fullest rank, counted
};

// Short documents are packed and dealt to the ranks whole (DataZ), each long one is split over all
// ranks; where the border lies is found by trying every document as the longest short one.  What
// each layer runs is the layer planner's (layer_planner.h): the fastest mix that fits.
//
// Costs are read off a ladder of lengths (layer_costs.h); the plan that is chosen is folded again
// exactly, and its bytes are checked on every rank.
class Planner {
 public:
  // Throws std::invalid_argument for a name that is unknown or does not fit.
  explicit Planner(PlanningTask task);
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  // The plan, or why there is none: the document that fits nowhere, what it needs and of what, the
  // budget, and the longest document that fits.
  struct Answer {
    std::optional<Plan> plan;
    std::string why_not;
  };
  Answer plan(const std::vector<std::int64_t>& lengths);
  // Whether the last answer was there already.
  [[nodiscard]] bool was_cached() const { return cached_; }

  // Predicted seconds of one document of each of these lengths under each option that fits, for
  // people: rows of (length, option, seconds or why not).
  struct Row {
    std::int64_t length = 0;
    std::string option;
    double seconds = 0;
    std::int64_t peak_bytes = 0;
    bool fits = false;
  };
  std::vector<Row> table(const std::vector<std::int64_t>& lengths);

  // One document of this length on all ranks together: the fastest program that fits, if any.
  std::optional<DocumentPlan> document(std::int64_t length);
  // What the layer planner chose among for it, and what it had for the layers: bytes.
  struct Choices {
    LayerCosts::Ways ways;  // transients include what the rest of the model needs
    std::int64_t capacity_bytes = 0;
    std::int64_t static_bytes = 0;
    PartCost rest;
  };
  Choices choices_of(std::int64_t length);
  // The ways that the layer planner leaves out of it, and why (rejected_ways), as numbers of the
  // whole model.
  std::vector<RejectedWay> rejected(std::int64_t length);
  // What a document needs at least, on its fullest rank, and what there is: for a document that no
  // plan fits.
  struct Shortage {
    PredictedBytes bytes = {};  // counted exactly
    std::string program = {};   // that needs least
    std::int64_t budget = 0;    // that plans may fill

    [[nodiscard]] std::int64_t missing() const { return bytes.total() - budget; }
  };
  Shortage shortage(std::int64_t length);
  // Tokens of the longest document that can be planned for; 0: none.  Without a budget there is no
  // longest: nothing.
  std::optional<std::int64_t> longest_document();

  // What a plan's micro-batches took, so that later plans know better; says so when the machine has
  // changed.
  std::optional<std::string> observe(const Plan& plan, const std::vector<double>& seconds);

  // What it has learned in a run, for the run that goes on from a checkpoint: ratios of observe(),
  // and bytes that leaner() holds plans to, by log2 of the tokens.
  struct Learned {
    Correction::Ratios ratios = {};
    std::map<int, std::int64_t> caps = {};

    friend bool operator==(const Learned&, const Learned&) = default;
  };
  [[nodiscard]] Learned learned() const;
  void learn(const Learned& learned);

  // After `plan` ran out of memory in spite of what was counted: a plan for the same documents that
  // is held to 95 % of what its fullest micro-batch was to take, as are all plans for such lengths
  // from now on (but where none would fit that).  Nothing when none fits that.
  std::optional<Plan> leaner(const Plan& plan);

  [[nodiscard]] const PlanningTask& task() const { return task_; }

 private:
  // A whole document under a layer choice.
  struct Estimate {
    double wall = 0;         // seconds of the micro-batch when it runs alone
    double busy = 0;         // seconds of the busiest rank
    std::int64_t saved = 0;  // bytes on the fullest rank
    std::int64_t peak = 0;   // static bytes included
  };
  Estimate estimate(LayerCosts& costs, const LayerChoice& layer, std::int64_t length);
  // `tokens`: that the fullest rank's group holds.
  [[nodiscard]] bool fits(std::int64_t bytes, std::int64_t tokens) const;
  [[nodiscard]] std::int64_t budget(std::int64_t tokens) const;  // of what is counted
  // The fastest program that fits, and what it holds.
  struct Fitting {
    LayerProgram program;
    PredictedBytes bytes;
  };
  std::optional<Fitting> program_for(
      LayerCosts& costs, std::int64_t length, const std::vector<std::vector<std::int64_t>>& groups);
  Choices choices_of(LayerCosts& costs, std::int64_t length) const;
  // By the planner that the task names.
  [[nodiscard]] LayerPlan layers_of(const LayerCosts::Ways& ways, std::int64_t capacity) const;
  std::optional<DocumentPlan> find_document(std::int64_t length);
  bool can_run(std::int64_t length);
  std::optional<Plan> build(
      const std::vector<std::int64_t>& lengths,
      const std::vector<std::int64_t>& order,
      std::size_t long_documents,
      const LayerChoice& short_layer);
  // The documents of every rank, of every micro-batch.
  using Dealt = std::vector<std::vector<std::vector<std::int64_t>>>;
  Dealt deal(
      const std::vector<std::int64_t>& lengths,
      const std::vector<std::int64_t>& documents,
      const LayerChoice& layer);
  Answer make(const std::vector<std::int64_t>& lengths);
  std::optional<Plan> best_of_borders(
      const std::vector<std::int64_t>& lengths,
      const std::vector<std::int64_t>& order,
      bool all_borders);
  std::string refusal(std::int64_t longest);
  void forget_what_is_out_of_date();

  PlanningTask task_;
  Correction correction_;
  std::int64_t static_bytes_ = 0;  // of the fullest rank
  LayerCosts all_;                 // on all ranks together
  LayerCosts one_;                 // on one rank
  PlanPrediction prediction_;
  std::vector<LayerChoice> whole_;  // choices for documents that stay whole
  std::map<std::int64_t, std::optional<DocumentPlan>> documents_;
  std::map<std::vector<std::int64_t>, Plan> plans_;  // the last few, by lengths
  std::map<int, std::int64_t> caps_;                 // bytes, by log2 of the tokens: leaner()
  std::int64_t version_ = 0;                         // of the correction that these were made with
  bool cached_ = false;
  bool past_caps_ = false;  // these do not count
  LayerProgram last_;       // what the published heuristic smooths towards
};

}  // namespace paradyse
