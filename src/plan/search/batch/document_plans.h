// The plan of one document on a group of so many ranks: what commands show, and what planners of
// whole batches (batch_planner.h) put together.
//
// Costs are read off a ladder of lengths (layer_costs.h); the program that the layer planner picks
// is folded again exactly, and its bytes are those of the fullest rank.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/plan.h"
#include "src/plan/search/batch/planning.h"

namespace paradyse {

// The program of a document that a group shares.
struct DocumentPlan {
  LayerRuns program;
  double seconds = 0;    // forward and backward, predicted
  PredictedBytes bytes;  // of the fullest rank, counted
};

class DocumentPlans final : public Planning {
 public:
  // Throws std::invalid_argument for a name that is unknown, or where no strategy is left.
  explicit DocumentPlans(PlanningTask asked);

  [[nodiscard]] const LayerPlannerRow& layer_planner() const { return *layer_planner_; }

  // The fastest program that fits for one document on a group of `ranks`, if any.  Remembered until
  // the correction or what lengths are held to changes.
  std::optional<DocumentPlan> best(std::int64_t length, int ranks, Caps caps = Caps::held);
  // The same for packed documents in groups of `ranks`, side by side, at the costs of a document of
  // `length`, corrected as for their longest.  `among`: groups of a weight domain have to agree in
  // recomputing whole layers, and in some options.
  struct Fitting {
    LayerRuns program = {};
    PredictedBytes bytes = {};
    double seconds = 0;  // of its layers, as estimated
  };
  std::optional<Fitting> program_for(
      std::int64_t length,
      int ranks,
      const std::vector<std::vector<std::int64_t>>& groups,
      Caps caps = Caps::held,
      AmongWays among = {});

  // A document under one layer choice, by estimates; its group's longest has `longest` tokens, 0:
  // this is it.
  struct Estimate {
    double wall = 0;         // seconds of the micro-batch when it runs alone
    double busy = 0;         // seconds of the busiest rank
    std::int64_t saved = 0;  // bytes on the fullest rank
    std::int64_t peak = 0;   // static bytes included
  };
  Estimate estimate(
      const LayerChoice& layer, std::int64_t length, int ranks, std::int64_t longest = 0);
  // Seconds of a group whatever documents it has: each takes its own beside that.
  Estimate once(const LayerChoice& layer, int ranks);
  // What all layers of groups of so many ranks may be, asked for or worth a try, and the longest
  // document of each; without those that none fits.  Remembered while `held_to()` is the same.
  struct Room {
    LayerChoice layer;
    std::int64_t longest = 0;
  };
  const std::vector<Room>& rooms(int ranks, Caps caps);
  // [layer][document] Wall seconds of documents of these lengths, as estimate() says.
  std::vector<std::vector<double>> walls(
      const std::vector<Room>& layers, const std::vector<std::int64_t>& lengths, int ranks);
  // Tokens of the longest document that fits under one layer choice, by estimates; 0: none does.
  std::int64_t longest(const LayerChoice& layer, int ranks, Caps caps = Caps::held);

  // What the layer planner chooses among, and what it has for the layers: bytes.
  struct Choices {
    LayerWays ways;  // transients include what the rest of the model needs
    std::int64_t capacity_bytes = 0;
    std::int64_t static_bytes = 0;
    PartCost rest;
  };
  // `among`, `longest`: as LayerCosts::ways().
  Choices choices(
      std::int64_t length,
      int ranks,
      Caps caps = Caps::held,
      AmongWays among = {},
      std::int64_t longest = 0);
  // The ways that the layer planner leaves out of it, and why (rejected_ways), as numbers of the
  // whole model.
  std::vector<RejectedWay> rejected(std::int64_t length, int ranks);

  // What documents that stay whole, each on one rank, may run; none where the layer planner splits
  // all.
  [[nodiscard]] const std::vector<LayerChoice>& whole() const { return whole_; }

  // What a document needs at least, on its fullest rank, and what there is: for a document that no
  // plan fits.
  struct Shortage {
    PredictedBytes bytes = {};  // counted exactly
    std::string program = {};   // that needs least
    std::int64_t budget = 0;    // that plans may fill

    [[nodiscard]] std::int64_t missing() const { return bytes.total() - budget; }
  };
  Shortage shortage(std::int64_t length);
  // Why there is no plan for a document, with the longest that has one, as a sentence.
  std::string refusal(std::int64_t length);
  // Tokens of the longest document that can be planned for; 0: none.  Without a budget there is no
  // longest: nothing.
  std::optional<std::int64_t> longest();

  // One document of each of these lengths under each option that fits.
  std::vector<OptionRow> table(const std::vector<std::int64_t>& lengths);

 private:
  void forget() override { plans_.clear(); }
  // The published planner gathers for each micro-batch.
  [[nodiscard]] bool may_leave_weights_whole() const override {
    return !layer_planner_->splits_all && Planning::may_leave_weights_whole();
  }
  [[nodiscard]] LayerPlan layers_of(const LayerWays& ways, std::int64_t capacity) const;
  std::optional<DocumentPlan> find(std::int64_t length, int ranks, Caps caps);
  bool can_run(std::int64_t length);
  std::optional<Fitting> program_among(
      const Choices& known,
      std::int64_t length,
      int ranks,
      const std::vector<std::vector<std::int64_t>>& groups,
      Caps caps);

  const LayerPlannerRow* layer_planner_;
  std::vector<LayerChoice> whole_;
  using Key = std::tuple<std::int64_t, int, Caps, bool>;  // length, ranks, weights_whole()
  std::map<Key, std::optional<DocumentPlan>> plans_;      // forgotten as best() says
  std::map<std::tuple<int, Caps, bool>, std::vector<Room>> rooms_;  // ranks, weights_whole()
  HeldTo rooms_held_to_;
  LayerRuns last_;  // what the published heuristic smooths towards
};

}  // namespace paradyse
