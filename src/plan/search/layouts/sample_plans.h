// What samples of one size take on a group of so many ranks: what planners of whole batches put
// together.
//
// The layout is the one that sends least (layout_planner.h).  Within memory, of each part of each
// layer, is chosen what is recomputed and in how many tiles it runs (placed_layers.h); bytes are
// those of the fullest rank, counted.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "src/plan/search/batch/planning.h"
#include "src/plan/search/layers/part_choices.h"
#include "src/plan/search/layouts/sample_units.h"

namespace paradyse {

// So many samples at once, all of these sizes; groups as large lie beside it.
struct SampleGroup {
  DimSizes dims;
  std::int64_t rows = 0;  // of a sample
  std::int64_t samples = 1;
  int ranks = 1;

  friend auto operator<=>(const SampleGroup&, const SampleGroup&) = default;
};

class SamplePlans final : public Planning {
 public:
  explicit SamplePlans(PlanningTask asked);

  struct Fitting {
    LayerRuns program;
    PredictedBytes bytes;
    double seconds = 0;  // forward and backward, predicted
  };
  struct Found {
    std::optional<Fitting> fitting = {};  // the fastest that fits
    PredictedBytes least = {};            // else, what the program needs that needs least
  };
  // Remembered until the correction or what rows are held to changes.  Layers are recomputed as a
  // whole where that is asked for, or where others need not do the same: the group has all ranks,
  // or weights are whole while a step lasts.  In two-byte types that goes for tiles, too, since
  // gradients of parts in tiles are wider.  Throws std::invalid_argument where a part has no way to
  // run.
  const Found& best(const SampleGroup& group, Messages messages, Caps caps);

 private:
  void forget() override { known_.clear(); }
  [[nodiscard]] Documents documents(const SampleGroup& group) const;
  [[nodiscard]] Fitting priced(
      const SampleGroup& group, Messages messages, const std::vector<LayerChoice>& layers);
  [[nodiscard]] Found find(const SampleGroup& group, Messages messages, Caps caps);
  // Placements of the layers of a group, which know nothing of memory.
  std::vector<LayerChoice> layout(const SampleGroup& group);

  SavingChoices savings_;
  // By the ranks that weights are gathered from, too; counted: nothing changes them.  A corpus may
  // have any number of sizes: after so many they are forgotten.
  std::map<std::pair<SampleGroup, int>, LayerRuns> layouts_;
  std::map<std::tuple<SampleGroup, Messages, Caps>, Found> known_;
};

// A plan for samples of these lengths that has no micro-batches yet.
Plan plan_of_samples(const PlanningTask& task, const std::vector<std::int64_t>& lengths);
// The name of a program, which is added to the plan if it is new.
std::string name_in(Plan& plan, const LayerRuns& program);

// Groups of these numbers of ranks, with samples of one size each, side by side: the fastest plan
// of those that are looked at.  None: there is no room, or no way to run on so few.
std::optional<Plan> samples_in_groups(
    SamplePlans& samples,
    const BatchSizes& batch,
    const std::vector<SamplesOfASize>& sizes,
    const std::vector<int>& ranks,
    Caps caps);

}  // namespace paradyse
