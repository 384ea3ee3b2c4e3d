// What each way to run a layer costs on one group of ranks, by the length of the document.
//
// Bytes are folds of the parts' programs, seconds a time model's.  Both are made once on a ladder
// of lengths, a quarter of a doubling apart, and read off between its rungs.  Next: layer_planner.h
// chooses among the ways.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/correction.h"
#include "paradyse/plan/planning_task.h"
#include "paradyse/plan/strategy.h"
#include "paradyse/plan/time_model.h"
#include "src/plan/search/layers/layer_planner.h"

namespace paradyse {

// Of one part of a layer, or of the rest of the model.
struct PartCost {
  double wall = 0;     // seconds of all ranks, in groups of the size, each with such a document
  double busy = 0;     // of one rank, alone on a core
  double forward = 0;  // of `wall`, a forward pass
  std::int64_t saved_bytes = 0;  // of the fullest rank, as the next
  std::int64_t transient_bytes = 0;
  std::int64_t input_bytes = 0;  // of what it reads and does not leave on the host
};

// Which ways to run a layer are asked for.
struct AmongWays {
  bool tried = true;  // those with options that nobody asked for
  bool whole = true;  // layers made again as a whole; where nothing else is asked for, always
};

// What seconds go by where weights are gathered from the ranks of `domain`: where they are whole,
// what goes by the work if there is that, since others were measured with all that they gather.
std::shared_ptr<const TimeModel> seconds_of(const PlanningTask& task, int domain);

class LayerCosts {
 public:
  // For groups of `ranks`, side by side, which gather weights from the ranks of `domain`.  Fewer
  // than all: only strategies that gather weights.  What is given lives longer.
  LayerCosts(const PlanningTask& task, int ranks, int domain, const Correction& correction);

  // Every way that none beats in seconds as corrected, saved and transient bytes together, and the
  // layer it stands for.  Seconds are `wall`.  They are corrected as for a group whose longest
  // document has `longest` tokens; 0: `length`, the only one.
  struct Ways {
    std::vector<LayerCost> costs;
    std::vector<LayerChoice> layers;
    std::vector<double> busy;
  };
  Ways ways(std::int64_t length, AmongWays among = {}, std::int64_t longest = 0);
  // Whether the part has options that nobody asked for.
  [[nodiscard]] bool tries(PartChoice part) const;

  // Of one choice, corrected by what was measured for its attention strategy, as for ways(); and of
  // what is not in a layer: embedding, transform, head, rotary tables.
  PartCost layer(const LayerChoice& choice, std::int64_t length, std::int64_t longest = 0);
  PartCost rest(std::int64_t length);
  // The same by the time model alone.
  PartCost predicted_layer(const LayerChoice& choice, std::int64_t length);
  PartCost predicted_rest(std::int64_t length) { return read_off(ways_.size(), length); }
  // Of a group whatever documents it has: what the first takes beside the second, of one token
  // each; of seconds that do not go by the work, all that the first takes.
  PartCost predicted_layer_once(const LayerChoice& choice);
  // Wall seconds alone, for many lengths at once, whose places on the ladder are found once.
  struct Place;
  static Place place_of(std::int64_t length);
  static std::vector<Place> places(const std::vector<std::int64_t>& lengths);
  std::vector<double> predicted_walls(const LayerChoice& choice, const std::vector<Place>& places);
  std::vector<double> predicted_rest_walls(const std::vector<Place>& places);
  PartCost predicted_rest_once() { return once(ways_.size()); }

  // Attention and MLP alike: those that people compare.
  [[nodiscard]] const std::vector<LayerChoice>& uniform() const { return uniform_; }
  // The same with options that nobody asked for.
  [[nodiscard]] const std::vector<LayerChoice>& tried() const { return tried_uniform_; }

 private:
  // Of one of ways_, or, beyond them, of the rest: folded at rung `i` of the ladder, and
  // remembered; between its rungs.
  const PartCost& at(std::size_t way, std::size_t i);
  void add_walls(
      std::size_t way,
      bool again,  // made again: its forward pass counts twice
      const std::vector<Place>& places,
      std::vector<double>& walls);
  PartCost read_off(std::size_t way, std::int64_t length);
  const PartCost& once(std::size_t way);
  PartCost fold(std::size_t way, const std::vector<std::int64_t>& lengths) const;

  const PlanningTask& task_;
  const Correction& correction_;
  int ranks_;
  int domain_;
  const Model& model_;
  Model ends_;  // of it, without layers
  std::shared_ptr<const TimeModel> seconds_;
  bool part_by_part_ = true;      // layers whose parts are made again one by one
  bool whole_ = true;             // layers that are made again as a whole
  std::vector<PartChoice> ways_;  // to run one part
  std::vector<bool> tried_;       // [way] it has an option that nobody asked for
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
  std::size_t low = 0;
  std::size_t high = 0;
  double share = 0;  // of the way from one to the other
  double most_above =
      0;  // what is read off here is above the cost by no more than this share of it
};

// The cost of a layer's two parts together: what one keeps is there while the other runs.
PartCost operator+(const PartCost& attention, const PartCost& mlp);

// The cost of a layer that is made again as a whole: it keeps what it reads, and all that its parts
// keep while its backward pass runs.
PartCost whole_layer_cost(PartCost layer);

}  // namespace paradyse
