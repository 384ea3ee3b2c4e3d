// Finds plans.  Deterministic, all on the plan side.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/cost.h"
#include "paradyse/plan.h"

namespace paradyse {

// A plan of one micro-batch in which all documents run as `layers` says on all ranks; with a
// one-rank strategy, documents are dealt to the ranks, longest first to the least loaded.
Plan uniform_plan(
    const ModelShape& model,
    std::vector<std::int64_t> lengths,
    int ranks,
    const std::vector<LayerChoice>& layers);

// What plans are made for.
struct PlanningTask {
  ModelShape model;
  int ranks = 1;
  MachineNumbers machine;
  Precision precision;
  std::int64_t memory_per_rank = 0;            // bytes; 0: no limit
  bool training = true;                        // else forward passes alone: nothing is saved
  std::int64_t static_bytes_per_element = 16;  // parameter, gradient, optimizer state
  std::string attention;                       // a strategy's name, or "" for any
  std::string mlp;                             // a verb or strategy's name, or "" for any
  std::string recompute;                       // a level, or "" for any
};

// What all documents of one micro-batch may do: a choice for every layer, on groups of one rank or
// on all ranks together.
struct Option {
  LayerChoice layer;
  bool one_rank = false;

  [[nodiscard]] std::string name() const;  // "UlyssesZ+gather", "DataZ+gather, recompute full"
};

// The first planner: short documents are packed and dealt to the ranks whole (DataZ), each long one
// is split over all ranks by the fastest strategy that fits; where the border lies is found by
// trying every document as the longest short one.
//
// Costs come from the closed form of cost.h, folded on a ladder of lengths once and read off by
// interpolation; the plan that is chosen is folded again exactly, and its bytes are checked on
// every rank.
class Planner {
 public:
  // Throws std::invalid_argument for a name that is unknown or does not fit.
  explicit Planner(PlanningTask task);

  // The plan, or why there is none: the document that fits nowhere, what it needs and of what, the
  // budget, and the longest document that fits.
  struct Answer {
    std::optional<Plan> plan;
    std::string why_not;
  };
  Answer plan(const std::vector<std::int64_t>& lengths);

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

  // Seconds of a micro-batch, given the busy seconds of each of its ranks: ranks share cores.
  [[nodiscard]] double wall_seconds(const std::vector<double>& busy) const;

 private:
  // What one document costs under an option.
  struct Estimate {
    double wall = 0;         // seconds of the micro-batch when it runs alone
    double busy = 0;         // seconds of the busiest rank
    std::int64_t saved = 0;  // bytes on the fullest rank
    std::int64_t peak = 0;   // static bytes included
  };
  const Estimate& at(std::size_t option, std::int64_t length);  // folded, remembered
  Estimate read_off(std::size_t option, std::int64_t length);   // between two rungs
  [[nodiscard]] bool fits(std::int64_t bytes) const;
  std::optional<Plan> build(
      const std::vector<std::int64_t>& lengths,
      const std::vector<std::int64_t>& order,
      std::size_t long_documents,
      std::size_t short_option);
  void predict(Plan& plan) const;
  std::vector<PlanMicroBatch> deal(
      const std::vector<std::int64_t>& lengths,
      const std::vector<std::int64_t>& documents,
      std::size_t option);
  std::optional<std::size_t> best_long(std::int64_t length);

  PlanningTask task_;
  std::int64_t static_bytes_ = 0;  // of the fullest rank
  std::vector<Option> options_;
  std::map<std::pair<std::size_t, std::int64_t>, Estimate> folded_;
};

}  // namespace paradyse
