// Strategies: named builders of programs.
//
// A layer is a list of parts; a strategy is one way to run one kind of part.  Of attention it is an
// attention core and a weight verb, of an MLP a weight verb alone.  Every program gives its streams
// back as it took them, from the one weight layout, so any strategy may follow any other on the
// same group.  docs/reference/strategy_costs.md has the table with volumes
// and saved bytes.  To add one: write a file in src/plan/strategy/<kind>/ with the verbs of
// writer.h and name it in table.cc, or call add_strategy().
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paradyse/plan/detail/placement.h"
#include "paradyse/plan/detail/schedule.h"
#include "paradyse/plan/model.h"
#include "paradyse/plan/program.h"

namespace paradyse {

// How weights reach the ops: the shard used in place, gathered from the weight domain, or gathered
// and dropped a piece at a time (heads or feed-forward width).
enum class Verb { hold, gather, pass };
inline constexpr Verb kVerbs[] = {Verb::hold, Verb::gather, Verb::pass};

// What is run again before a part's backward instead of being saved.
//   none:             nothing but weights and gathered tokens
//   light:            norms and activation functions
//   attention_output: everything but the attention core's output (for an MLP: everything)
//   full:             everything; only the part's input is saved
enum class Recompute { none, light, attention_output, full };
inline constexpr Recompute kRecomputeLevels[] = {
    Recompute::none, Recompute::light, Recompute::attention_output, Recompute::full};

// What of a layer is made again: each part's own, by one level; or the layer as a whole, from what
// enters it, and once it runs again, each part's own.
struct LayerRecompute {
  Recompute parts = Recompute::none;
  bool layer = false;

  friend auto operator<=>(const LayerRecompute&, const LayerRecompute&) = default;
};

// What a part of a layer runs.
struct PartChoice {
  std::string part;      // of the model's layers: "attention", "mlp", "spatial_mlp", ...
  std::string strategy;  // of the part's kind
  Recompute recompute = Recompute::none;
  bool offload = false;  // what waits for the backward pass waits in host memory
  // The layer is made again as a whole: all its parts say so, or none.  Moves in front of the part
  // are, too.
  bool with_layer = false;
  std::map<std::string, std::int64_t> options = {};  // absent: the strategy's own default
  // Where streams that it reads shall lie (placement.h), by axis of the group's mesh; absent: at
  // home.
  std::map<std::string, Placement> in = {};
  // What somebody who wrote it expects of the part, compared with its programs when a plan is
  // checked: where streams that it writes come to lie; and the elements that the fullest rank of
  // the group sends inside the group in a run of such layers, moves in front of the part included.
  std::map<std::string, Placement> out = {};
  struct Elements {
    std::int64_t forward = 0;
    std::int64_t backward = 0;  // what is made again included

    friend auto operator<=>(const Elements&, const Elements&) = default;
  };
  std::optional<Elements> elements = {};

  friend auto operator<=>(const PartChoice&, const PartChoice&) = default;
};

// The parts of a layer, in the order in which they run.
using LayerChoice = std::vector<PartChoice>;

// What a builder is given.
struct Task {
  std::shared_ptr<const Part> part;  // null, where a choice is judged without a model
  PartChoice choice = {};
  Layouts streams = {};   // how what it reads lies; and what is made from nothing shall lie
  Documents documents;    // of the group, cut over its ranks
  int domain = 1;         // ranks of the weight domain
  bool training = false;  // gradients are made and dropout is on; timeline() says so

  [[nodiscard]] const PartShape& shape() const { return part->shape; }

  // The value of an option, or `otherwise` where the choice leaves it to the strategy.
  [[nodiscard]] std::int64_t option(const std::string& name, std::int64_t otherwise) const;
};

// A whole number from 1 that a strategy takes.  Declared in the strategy's file and nowhere else:
// the plan file, the checker, the command line and the planners read it there.
struct Option {
  std::string name = {};     // key in a plan, and with dashes the --flag of a command
  std::string meaning = {};  // one line for people, with its default
  // Why this value does not suit the group, or the model where the task has one; "": it does.
  // Null: any does.
  std::function<std::string(std::int64_t value, const Task& task)> why_not = {};
  // What planners try beside the default, which is not among them.  Null: the default alone.
  std::function<std::vector<std::int64_t>(const Task& task)> candidates = {};
};

// The option by which a part runs in tiles, one after the other: chunking along what is a batch.
inline constexpr const char* kTilesOption = "token_tiles";

// One way to run one kind of part.
struct Strategy {
  std::string
      kind;  // of parts that it runs: "attention", "mlp"; those outside layers have one each
  std::string name;
  Verb verb = Verb::gather;
  bool one_rank = false;  // runs on groups of one rank only
  std::function<Program(const Task&)> build = {};
  std::vector<Option> options = {};
  std::string summary;  // one line for people
};

// All strategies of a kind, in the order of the table in docs/reference/strategies.md.
std::span<const Strategy> strategies(const std::string& kind);

// Adds one (examples/own_strategy.cc): plans, checks and commands then know its name.  Before any
// planner or rank starts.  Throws std::invalid_argument for a kind that no part of a layer has, in
// any family (model_folder.h), a name that is taken or no builder.
void add_strategy(Strategy strategy);
// Takes one that was added away again.  Throws std::invalid_argument for another.
void remove_strategy(const std::string& kind, const std::string& name);

// Of an MLP a published name ("UlyssesZ") stands for its verb.  Throws std::invalid_argument with
// the nearest names for a name that is not in the table.
const Strategy& strategy(const std::string& kind, const std::string& name);

// Whether a strategy that is known has this option.
bool takes(const std::string& kind, const std::string& name, const std::string& option);

// The parts of a layer, in the order of a plan, of each kind of layers that a model has, by what
// plans call a model of several dims (architecture()); of every other name layer_parts().
const std::vector<std::vector<std::string>>& layer_kinds(const std::string& model_name);
// Those of the kind that begins with this part; where none does, of the first kind.
const std::vector<std::string>& parts_like(
    const std::string& model_name, const std::string& first_part);
// Of a text model: attention and mlp, each of the kind of its name.
const std::vector<std::string>& layer_parts();

// The kind of the parts that are called so in any model: "mlp" of "spatial_mlp".  Of an unknown
// name the name.
const std::string& kind_of(const std::string& part);

// A layer of a text model.  Without an MLP strategy: the verb of the attention's.
LayerChoice text_layer(
    const std::string& attention,
    const std::string& mlp = {},
    Recompute attention_recompute = Recompute::none,
    Recompute mlp_recompute = Recompute::none);

// What a layer says of a part.  Throws std::invalid_argument where it says nothing.
const PartChoice& part_of(const LayerChoice& layer, const std::string& part);
PartChoice& part_of(LayerChoice& layer, const std::string& part);

// All layers of a kind alike: each runs those of the choices that are of its parts.  Throws as
// part_of().
std::vector<LayerChoice> layers_of(const Model& model, const LayerChoice& choice);

// Every option of every strategy of these kinds once, by name.
std::vector<Option> all_options(const std::vector<std::string>& kinds = layer_parts());

// Puts options where they belong: to each part whose strategy has them; else to the first part
// whose kind has them, where misfits() says what is wrong.
void set_options(LayerChoice& layer, const std::map<std::string, std::int64_t>& options);

// The name by which plans call the same choice, whatever it was called: an MLP's published name
// becomes its verb, and attention-output, of a part without attention, full.  A strategy that is
// unknown stays as it is.
PartChoice canonical(PartChoice choice);

std::string to_string(Verb verb);
std::string to_string(Recompute recompute);
// "none", "light", "attention-output", "full".  Throws like strategy().
Recompute recompute(const std::string& name);

// The same, "layer" and, for what its parts make again besides, "layer+light" and so on.
std::string to_string(LayerRecompute recompute);
LayerRecompute layer_recompute(const std::string& name);
// All names that layer_recompute() knows.
std::vector<std::string> recompute_names();
void set_recompute(LayerChoice& layer, LayerRecompute recompute);
// All parts say so.
bool made_again_whole(const LayerChoice& layer);

// Sets the mask.  Weights and what the builder marked itself stay recomputed at every level.
void apply(Recompute level, Program& program);

// "UlyssesZ+gather", "METP+pass, recompute full, head_groups 2", "MegatronTS+hold, recompute light
// and full", "UlyssesZ+gather, mlp takes x at R".
std::string name(const LayerChoice& layer);

// Why a choice does not suit a group: an option that its strategy has not got, or a value that
// does not suit it; a strategy for one rank on several; weights passed by a group that is not the
// whole domain, or held by one whose size does not divide it.  None: it suits.
struct Misfit {
  std::string option;  // "": the strategy itself
  std::string why;     // "runs on groups of one rank; ...", "head_groups 3 of 'METP': ..."
};
std::vector<Misfit> misfits(const Task& task, const PartChoice& choice);

// How the streams that a part reads, or makes from nothing, are to lie: as the choice says, else at
// home; stored so that rows of a line along the part's dim are neighbours where a rank has all of
// it.  Throws std::invalid_argument like placed(), and for a stream that the part does not read.
Layouts streams_of(
    const Model& model, const Part& part, const PartChoice& choice, const Documents& documents);

// That of a part of the model, or of its first of this name; its streams lie at home.
Task task_of(const Model& model, const std::string& part, Documents documents, int domain);
Task task_of(
    const Model& model, const std::shared_ptr<const Part>& part, Documents documents, int domain);

// One part, scheduled.  Throws like timeline().
ScheduledPart scheduled_part(
    const Task& task, const PartChoice& choice, bool keep = true, Messages messages = {});

// A part without weights that stores a stream otherwise, scheduled; in no layer.
ScheduledPart scheduled_move(
    const std::string& stream,
    const Layout& from,
    const Layout& to,
    const Documents& documents,
    int domain,
    Keeping keeping = {});

// All parts of a micro-batch on one group, scheduled.  `layers`: a choice for each layer.  Without
// `keep` (evaluation) nothing is saved, and dropout is off.  `messages`: how they travel.
//
// Where a part is to read a stream that lies otherwise, a part is put in between that moves it,
// "move x": one redistribute, no weights.  So whoever chooses placements writes no moves.  Parts
// that nobody needs (Model::needed) are left out.  What is in no layer takes its streams at home;
// of a model with inputs it makes a stream where its first reader wants it, and reads one as it
// lies where each rank has whole rows of its own.
//
// Throws std::invalid_argument when a strategy does not fit the group or cannot run from where its
// streams lie: `pass` on a group that is not the whole domain, a one-rank strategy on several
// ranks, a ring over copies; and for another number of layers.
Timeline timeline(
    const Model& model,
    const Documents& documents,
    int domain,
    std::span<const LayerChoice> layers,
    bool keep = true,
    Messages messages = {});

}  // namespace paradyse
