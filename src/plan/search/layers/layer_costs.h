// What each way to run a layer costs on one group of ranks, by the length of the document: for
// models whose samples have one free dim.
//
// Prices of parts (part_cost.h) are made once on a ladder of lengths, a quarter of a doubling
// apart, and read off between its rungs.  Next: layer_planner.h chooses among the ways.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paradyse/plan/detail/correction.h"
#include "paradyse/plan/detail/planning_task.h"
#include "paradyse/plan/detail/time_model.h"
#include "paradyse/plan/strategy.h"
#include "src/plan/search/layers/part_cost.h"
#include "src/plan/search/layers/partial_layers.h"

namespace paradyse {

// Which ways to run a layer are asked for.
struct AmongWays {
  bool tried = true;  // those with options that nobody asked for
  bool whole = true;  // layers made again as a whole; where nothing else is asked for, always
};

class LayerCosts {
 public:
  // For groups of `ranks`, side by side, which gather weights from the ranks of `domain`.  Fewer
  // than all: only strategies that gather weights.  What is given lives longer.
  LayerCosts(const PlanningTask& task, int ranks, int domain, const Correction& correction);

  // Every way that none beats in seconds as corrected, saved and transient bytes together.  Seconds
  // are `wall`.  They are corrected as for a group whose longest document has `longest` tokens; 0:
  // `length`, the only one.
  LayerWays ways(std::int64_t length, AmongWays among = {}, std::int64_t longest = 0);
  // Whether the part has options that nobody asked for.
  [[nodiscard]] bool tries(PartChoice part) const;

  // Of one choice, corrected by what was measured of its parts, as for ways(); and of what is not
  // in a layer: embedding, transform, head, rotary tables.
  PartCost layer(const LayerChoice& choice, std::int64_t length, std::int64_t longest = 0);
  PartCost rest(std::int64_t length, std::int64_t longest = 0);
  // [part of the choice] By the time model alone, and what corrects it; seconds of parts that are
  // made again with their layer are those of both times.
  std::vector<PartCost> predicted_parts(const LayerChoice& choice, std::int64_t length);
  std::vector<double> factors(const LayerChoice& choice, std::int64_t longest);
  PartCost predicted_rest(std::int64_t length) { return read_off(ways_.size(), length); }
  [[nodiscard]] double rest_factor(std::int64_t longest) const;
  // Of a group whatever documents it has: what the first takes beside the second, of one token
  // each; of seconds that do not go by the work, all that the first takes.
  std::vector<PartCost> predicted_parts_once(const LayerChoice& choice);
  PartCost predicted_rest_once() { return once(ways_.size()); }
  // Wall seconds alone, corrected, for many documents at once, each the longest of its group;
  // places on the ladder are found once.
  struct Place;
  static Place place_of(std::int64_t length);
  static std::vector<Place> places(const std::vector<std::int64_t>& lengths);
  // [layer][place], of many layers at once.
  std::vector<std::vector<double>> walls(
      std::span<const LayerChoice* const> layers, const std::vector<Place>& places);
  std::vector<double> rest_walls(const std::vector<Place>& places);

  // All parts recomputed alike: those that people compare.
  [[nodiscard]] const std::vector<LayerChoice>& uniform() const { return uniform_; }
  // The same with options that nobody asked for.
  [[nodiscard]] const std::vector<LayerChoice>& tried() const { return tried_uniform_; }

 private:
  // Of one of ways_, or, beyond them, of the rest: folded at rung `i` of the ladder, and
  // remembered; between its rungs.
  const PartCost& at(std::size_t way, std::size_t i);
  std::vector<double> walls_of(
      std::size_t way,
      bool again,  // made again: its forward pass counts twice
      const std::vector<Place>& places);
  [[nodiscard]] double factor(std::size_t way, std::int64_t longest) const;
  template <typename CostOf>
  std::vector<PartCost> parts_by(const LayerChoice& choice, CostOf cost_of);
  PartCost read_off(std::size_t way, std::int64_t length);
  const PartCost& once(std::size_t way);
  [[nodiscard]] PartCost fold(std::size_t way, const std::vector<std::int64_t>& lengths) const;
  // A part of a layer by a strategy and its options, which somebody asked for or not.
  struct Candidate {
    PartChoice choice;
    bool tried = false;
  };
  [[nodiscard]] std::vector<Candidate> candidates(const std::shared_ptr<const Part>& part) const;
  void add_uniform(const std::vector<std::vector<Candidate>>& parts);

  const PlanningTask& task_;
  const Correction& correction_;
  int ranks_;
  int domain_;
  const Model& model_;
  Model ends_;                      // of it, without layers
  std::vector<std::string> parts_;  // of a layer
  // Layers may differ in a part of one name (in a window of attention): how many have which.
  struct PartKind {
    std::shared_ptr<const Part> part;
    double share = 1;  // of the layers
  };
  std::map<std::string, std::vector<PartKind>> kinds_ = {};  // by a part's name
  std::shared_ptr<const TimeModel> seconds_;
  SavingChoices savings_;
  std::vector<PartChoice> ways_;    // to run one part
  std::vector<CostedPart> costed_;  // [way]
  std::vector<bool> tried_;         // [way] it has an option that nobody asked for
  std::vector<LayerChoice> uniform_;
  std::vector<LayerChoice> tried_uniform_;
  // The ways of a layer's parts: found for the layer that is asked for again and again.
  const std::vector<std::size_t>& ways_of(const LayerChoice& choice);

  // [way][rung] Kept for good, since nothing that is learned changes it.
  std::vector<std::vector<std::optional<PartCost>>> folded_;
  std::vector<std::optional<PartCost>> once_;  // [way]
  struct KnownLayer {
    LayerChoice layer;
    std::vector<std::size_t> ways;
  };
  std::optional<KnownLayer> last_;
};

// The rungs between which a length lies: the same where it is one.
struct LayerCosts::Place {
  std::int64_t length = 1;
  std::size_t low = 0;
  std::size_t high = 0;
  double share = 0;  // of the way from one to the other
  double most_above =
      0;  // what is read off here is above the cost by no more than this share of it
};

}  // namespace paradyse
