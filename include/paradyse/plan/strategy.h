// Strategies: named builders of programs.
//
// A strategy for attention is an attention core and a weight verb; for an MLP it is a weight verb
// alone.  Every program takes the residual stream as shard(T) and gives it back as shard(T), from
// the one weight layout, so any strategy may follow any other on the same group. docs/strategies.md
// has the table with volumes and saved bytes.  To add one: write its builder with
// program_writer.h and name it in the table of strategy.cc, or call add_strategy().
#pragma once

#include <span>
#include <string>
#include <vector>

#include "paradyse/plan/model_shape.h"
#include "paradyse/plan/program.h"
#include "paradyse/plan/schedule.h"

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

// What a builder is given: the model, the group's documents cut over its ranks, the weight domain.
struct Task {
  const ModelShape* model = nullptr;
  TokenLayout tokens;
  int domain = 1;
  // Options of LayerChoice.
  int head_groups = 0;
  int ulysses_degree = 0;
  int token_tiles = 0;
  bool dropout = false;  // the model's dropout is on; timeline() says so when training
};

struct Strategy {
  std::string name;
  Verb verb = Verb::gather;
  bool one_rank = false;  // runs on groups of one rank only
  Program (*attention)(const Task&) = nullptr;
  std::string summary;  // one line for people
};

// All strategies, in the order of the table in docs/strategies.md.
std::span<const Strategy> strategies();

// Adds one (examples/own_strategy.cc): plans, checks and commands then know its name.  Before any
// planner or rank starts.  Throws std::invalid_argument for a name that is taken or no builder.
void add_strategy(Strategy strategy);

// Throws std::invalid_argument with the nearest names for a name that is not in the table.
const Strategy& strategy(const std::string& name);

// A verb, or the verb of a published strategy.  Throws like strategy().
Verb verb(const std::string& name);

std::string to_string(Verb verb);
std::string to_string(Recompute recompute);
// "none", "light", "attention-output", "full".  Throws like strategy().
Recompute recompute(const std::string& name);

// The MLP of every strategy: it differs by verb alone.
Program mlp_program(const Task& task, Verb verb);
// Embedding, the masked-LM head's transform, and head, the same under every strategy: tables come
// in vocabulary tiles.  A `keep` head makes the gradient of the loss along with it; evaluation does
// not.
Program embedding_program(const Task& task);
Program transform_program(const Task& task);
Program head_program(const Task& task, bool keep);

// Sets the mask.  Weights and what the builder marked itself stay recomputed at every level.
void apply(Recompute level, Program& program);

// What one layer runs.
struct LayerChoice {
  std::string attention = "MegatronTS";
  std::string mlp = "hold";  // a verb
  Recompute attention_recompute = Recompute::none;
  Recompute mlp_recompute = Recompute::none;
  bool attention_offload = false;  // saved values wait in host memory for the backward pass
  bool mlp_offload = false;
  int head_groups = 0;     // METP: pieces in which heads pass by; 0: as many as ranks or key heads
  int ulysses_degree = 0;  // USP: ranks of a row of its grid; 0: as square as the group allows
  int token_tiles = 0;     // MLP: tiles of a rank's tokens, one after the other; 0: all at once

  friend bool operator==(const LayerChoice&, const LayerChoice&) = default;
};

// "UlyssesZ+gather", "METP+pass, recompute full", "MegatronTS+hold, recompute light and full".
std::string name(const LayerChoice& choice);

// An option of a layer that is a number from 1.
struct LayerOption {
  const char* name;
  int LayerChoice::* value;
  const char* strategy;  // whose attention has it; nullptr: every MLP
  const char* meaning;
};
std::span<const LayerOption> layer_options();

// Throws std::invalid_argument for an option that the choice's strategy has not got or that does
// not suit a group of so many ranks and a model with so many key/value heads.
void check_options(const LayerChoice& choice, int ranks, std::int64_t kv_heads);

// The parts of one layer, scheduled.  Throw like timeline().
ScheduledPart attention_part(const Task& task, const LayerChoice& choice, bool keep = true);
ScheduledPart mlp_part(const Task& task, const LayerChoice& choice, bool keep = true);

// All parts of a micro-batch on one group, scheduled.  `layers`: a choice for each layer.  Without
// `keep` (evaluation) nothing is saved, and dropout is off.
// Throws std::invalid_argument when a strategy does not fit the group: `hold` on a group that is
// not the whole domain, a one-rank strategy on several ranks, another number of layers.
Timeline timeline(const Task& task, std::span<const LayerChoice> layers, bool keep = true);

}  // namespace paradyse
