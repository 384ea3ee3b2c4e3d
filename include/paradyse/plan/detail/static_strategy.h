// Batches by one strategy for all documents, or groups of one size for all samples: what a user
// runs who does not choose by length, and what planners that choose are judged by.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paradyse/plan/batch_planner.h"

namespace paradyse {

class DocumentPlanner;

class StaticStrategy {
 public:
  struct How {
    // At the least level at which the longest document of a batch fits; else nothing is made again.
    bool recomputes = false;
    // A micro-batch takes, in order, as many documents as memory holds; else each has its own.  A
    // strategy of one rank deals documents to the ranks, and always packs.
    bool packs = true;
  };
  // All layers run `attention`, MLPs its verb.  Throws std::invalid_argument where it suits the
  // model or the ranks not.
  StaticStrategy(const PlanningTask& task, const std::string& attention, How how);
  // Of samples: by a batch planner with groups of one size, which recomputes what it must.
  StaticStrategy(const PlanningTask& task, const std::string& batch_planner);
  StaticStrategy(StaticStrategy&&) noexcept;
  StaticStrategy& operator=(StaticStrategy&&) noexcept;
  ~StaticStrategy();

  // Predicted.  Nothing where a document, or sample, does not fit.
  std::optional<Plan> plan(const BatchSizes& batch);
  std::optional<Plan> plan(const std::vector<std::int64_t>& lengths) {
    return plan(BatchSizes{.lengths = lengths});
  }
  // Of documents: tokens of the longest document that fits; nothing without a budget.
  std::optional<std::int64_t> longest();
  // Finds, now and not with the first plan, what a micro-batch has room for.
  void find_rooms();
  // What measurements taught.
  void learn(const BatchPlanner::Learned& learned);

 private:
  struct Level {
    std::unique_ptr<BatchPlanner> planner;  // of what is not packed here
    DocumentPlanner* documents = nullptr;   // that, of documents
    // Tokens of a micro-batch, once looked for: gathering weights for each, and leaving them whole.
    std::map<bool, std::int64_t> room = {};
  };
  static std::int64_t room(Level& level);
  std::optional<Plan> packed(Level& level, const std::vector<std::int64_t>& lengths);

  bool packs_;
  std::vector<Level> levels_;  // from the least on
};

// Of each strategy that the task has and that suits it, with as much recomputation as it takes; of
// samples, of each size of groups.
struct NamedStrategy {
  std::string name;
  StaticStrategy plans;
};
std::vector<NamedStrategy> static_strategies(const PlanningTask& task);

// A run by plans beside the best single strategy.
struct StaticComparison {
  std::string strategy = {};  // of those that fit all batches the fastest
  double seconds = 0;         // that it is predicted to take, recomputing where it must
  double ours = 0;            // that the plans are, by the same costs
  std::int64_t batches = 0;

  [[nodiscard]] double ratio() const { return seconds / ours; }

  friend bool operator==(const StaticComparison&, const StaticComparison&) = default;
};
// For the batches of these plans, by what `known` knows by now; what the plans say of themselves,
// by what was known then, does not count.  Nothing: no strategy fits all batches, or there is none.
std::optional<StaticComparison> compared_to_static(BatchPlanner& known, std::span<Plan> plans);

}  // namespace paradyse
