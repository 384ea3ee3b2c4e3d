// Plans where the streams of a layer lie, part after part, and how each part runs: DSP (Zhao et al.
// 2024) is one of the plans it looks at.
//
// A part's ways are all that its kind's strategies can build from streams that lie so, each with
// the costs of its program; where a stream lies otherwise it is moved, in one move.  Nothing is
// modelled: elements are counted by the folds over the programs that run.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "paradyse/plan/model.h"
#include "paradyse/plan/plan.h"
#include "paradyse/plan/program.h"
#include "paradyse/plan/strategy.h"

namespace paradyse {

struct LayoutTask {
  const Model* model = nullptr;
  Documents documents;  // the group's ranks, its mesh of one axis or two, sizes of dims
  int domain = 0;       // ranks of its sharding group; 0: the group is that
  LayerRecompute recompute = {};
  std::int64_t tiles = 1;  // token_tiles of every part that can be run in tiles
  enum class Objective { elements, seconds } objective = Objective::elements;
  // Of a part on the group, forward and backward (part_seconds() knows them on a cluster);
  // infinity: it is not to run so.  None: nobody asks for seconds.
  std::function<double(const ScheduledPart& part)> seconds = {};
};

// A stream on its way to a part.
struct PlannedMove {
  std::string stream;
  Placement from;
  Placement to;
  std::string collective;  // "all_to_all"; "keep" where nothing is sent
};

// Elements are means over the ranks; forward and backward, of one sample's step.
struct PlannedPart {
  PartChoice choice;                          // strategy, options, and where what it reads lies
  std::vector<PlannedMove> moves = {};        // in front of it
  std::vector<std::string> collectives = {};  // of the part itself, forward
  double elements_forward = 0;                // moves included
  double elements_backward = 0;
  double seconds = 0;    // 0 where the task has none
  double otherwise = 0;  // what a layer would cost more by the next best way of this part
};

struct LayoutPlan {
  std::vector<std::vector<PlannedPart>> layers;  // that follow one another for ever, or once
  // Of a layer, the mean over all of the model; where they run once, of all together.
  double elements_forward = 0;
  double elements_backward = 0;
  double seconds = 0;

  [[nodiscard]] double elements() const { return elements_forward + elements_backward; }
};

// The plan that costs least for ever; of a model with several stacks, those of each follow one
// another for ever, and stand here stack after stack.  By elements only placements are looked at by
// which every rank has less than twice its share of a stream: copies would send nothing and gain
// nothing. Throws std::invalid_argument where a part has no way to run.
LayoutPlan plan_layouts(const LayoutTask& task);

// The same of so many layers, from where streams are made to where they are read: what they cost in
// all, without the parts that nobody needs.  A model with inputs makes and reads them wherever
// layers want them, another at home (timeline() in strategy.h).  `otherwise` is not asked.  A model
// of several stacks has as many layers as it has: std::invalid_argument for another number.
LayoutPlan plan_layouts(const LayoutTask& task, std::int64_t layers);
// What each layer of it runs.
std::vector<LayerChoice> choices(const LayoutTask& task, const LayoutPlan& layouts);
// One group of all ranks that runs such layers.
Plan plan_of(const LayoutTask& task, const std::vector<LayerChoice>& layers);
Plan plan_of(const LayoutTask& task, const LayoutPlan& layouts);
// The same with the model's name and fingerprint; `seconds`: of planning.  Throws std::logic_error
// where the checker finds fault.
Plan checked_plan(const LayoutTask& task, const LayoutPlan& layouts, double seconds);

// Another who plans so: a strategy and placements for each part.
struct LayoutRival {
  std::string name;
  std::vector<PartChoice> parts;  // of a layer of each stack, in order; `in` for every stream
};
// Those of the model's family: "stdit", "evoformer" or "text".
//   dsp           the stream is switched to where lines are whole (Zhao et al. 2024)
//   ulysses       frames are cut, temporal attention exchanges heads (Jacobs et al. 2023)
//   ulysses-both  the same in both blocks
//   ring          frames are cut, keys and values of temporal attention go round (Liu et al. 2023)
//   megatron-sp   every part has all rows of own heads and width, the stream is cut (Korthikanti et
//                 al. 2022)
//   megatron-lm   the same, and every rank has all of the stream (Shoeybi et al. 2019)
//   dap           dynamic axial parallelism (Cheng et al. 2022), with adjoints that are adjoints
// Of "text" tokens are cut, and these run all layers: ulysses, usp (Fang & Zhao 2024), ring,
// all-gather-kv (Grattafiori et al. 2024), metp (ParaDySe), megatron-sp, megatron-lm.
// Of a family of a user's own there are none.
std::vector<LayoutRival> layout_rivals(const Model& model);

// The planned layout ("planned") and every rival's, as plans of all layers by the task's level of
// recompute; rivals know one axis.
struct LayoutWay {
  std::string name;
  Plan plan;
};
std::vector<LayoutWay> layout_ways(const LayoutTask& task);

// What it costs, layer after layer of a stack alike: the mean over all layers.
LayoutPlan cost_of(const LayoutTask& task, const LayoutRival& rival);

}  // namespace paradyse
