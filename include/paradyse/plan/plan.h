// The plan: what every rank does with a global batch.  A value, and a file that people can read.
//
// Format and rules: docs/reference/plan_file.md (version 1).  The plan side writes it, the run side
// plays it and never asks how it was found.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/cost.h"
#include "paradyse/plan/model.h"
#include "paradyse/plan/strategy.h"

namespace paradyse {

struct PredictedBytes {
  std::int64_t static_bytes = 0;
  std::int64_t saved = 0;
  std::int64_t transient = 0;

  [[nodiscard]] std::int64_t total() const { return static_bytes + saved + transient; }
  friend bool operator==(const PredictedBytes&, const PredictedBytes&) = default;
};

struct Predicted {
  std::optional<double> seconds;
  std::optional<double> lower_bound_seconds;
  std::optional<PredictedBytes> bytes;  // of the fullest rank of a group

  friend bool operator==(const Predicted&, const Predicted&) = default;
};

// `layers` equal layers in a row.
struct LayerRun {
  std::int64_t layers = 0;
  LayerChoice choice;

  friend bool operator==(const LayerRun&, const LayerRun&) = default;
};

using LayerRuns = std::vector<LayerRun>;

// A choice for each layer.
std::vector<LayerChoice> choices(const LayerRuns& program);
// The shortest list of runs for these choices.
LayerRuns runs_of(const std::vector<LayerChoice>& choices);

struct PlanGroup {
  std::vector<int> ranks;               // ascending
  std::vector<std::int64_t> documents;  // indices into Plan::lengths; none: an idle rank
  std::string program;                  // name of one of Plan::programs
  // [rank of the group] by which its documents are cut (token_cuts); none: evenly.
  std::vector<double> shares = {};
  std::vector<int> mesh = {};  // sizes of axes, whose product is its ranks; none: one axis
  DimSizes dims = {};          // of its documents, in place of Plan::dims
  Predicted predicted = {};

  friend bool operator==(const PlanGroup&, const PlanGroup&) = default;
};

struct PlanMicroBatch {
  std::vector<PlanGroup> groups;
  Predicted predicted;

  friend bool operator==(const PlanMicroBatch&, const PlanMicroBatch&) = default;
};

struct Plan {
  std::string model_name;    // its architecture
  std::string model_sha256;  // fingerprint() of its shape
  std::int64_t layers = 0;
  std::string cluster_name;
  std::string cluster_sha256;
  int ranks = 1;
  int weight_domain = 1;
  Messages messages = {};
  Tiles tiles = {};
  std::vector<std::int64_t> lengths;      // tokens of the global batch's documents
  std::vector<std::int64_t> source = {};  // [document] its line, from 1, of the file it is from
  DimSizes dims = {};                     // sizes that all of them have, beside it
  std::map<std::string, LayerRuns> programs;
  std::vector<PlanMicroBatch> micro_batches;
  Predicted predicted;
  std::string planner_name;
  std::string planner_space;
  std::optional<double> planner_seconds;

  friend bool operator==(const Plan&, const Plan&) = default;
};

// Every rank holds all weights while a step of the plan lasts.
bool whole_weights(const Plan& plan);
// So many ranks a micro-batch gathers weights from: those of a sharding group, or, where each has
// them whole, 1.
int gathers_from(const Plan& plan);
// So many ranks, one after the other, wait for one another in a micro-batch wherever documents are:
// those of a sharding group, or, where weights are whole, all, whose groups lie as they like.
int ranks_that_meet(const Plan& plan);
// The dims of a group's documents.
const DimSizes& dims_of(const Plan& plan, const PlanGroup& group);
// What a plan is made for: of each document its tokens; of each sample of a model of several dims
// its rows, and its dims.
struct BatchSizes {
  std::vector<std::int64_t> lengths;
  std::vector<DimSizes> dims = {};  // [sample]; of documents: empty

  friend auto operator<=>(const BatchSizes&, const BatchSizes&) = default;
};
BatchSizes sizes_of(const Plan& plan);

// The plan as JSON text, indented for people; ends in a newline.
std::string to_json(const Plan& plan);
// The same on one line, which does not end.
std::string to_json_line(const Plan& plan);

// Reads what to_json writes and what a person edits.  Throws std::invalid_argument naming the JSON
// path ("micro_batches[1].groups[0].program"), what stands there and what would be accepted: no
// JSON, another format or version, a missing or unknown key (with the nearest name), a wrong type.
Plan plan_from_json(const std::string& text, const std::string& source);
Plan read_plan(const std::filesystem::path& file);

// The canonical form: JSON with sorted keys, no white space, without `source`, `predicted`,
// `planner` and `expanded`.  plan_from_json() reads it.
std::string canonical_json(const Plan& plan);
// Its SHA-256.
std::string hash(const Plan& plan);

// A plan of one micro-batch in which all documents run as `layers` says on all ranks; with a
// one-rank strategy, documents are dealt to the ranks, longest first to the least loaded.
Plan uniform_plan(
    const Model& model,
    std::vector<std::int64_t> lengths,
    int ranks,
    const std::vector<LayerChoice>& layers);

// What a plan is checked against beyond itself; what is absent is not checked.
struct CheckContext {
  std::optional<Model> model = {};
  std::optional<std::int64_t> memory_per_rank = {};  // bytes
  std::vector<std::int64_t> memory_of_ranks = {};    // [rank], in its place: devices are unlike
  Precision precision = {};
  bool training = true;             // else evaluation: forward passes alone
  std::optional<Keeps> keeps = {};  // absent: what training, or evaluation, keeps of weights
};

// Everything that is wrong with a plan, each a sentence with its JSON path; none: the plan is
// sound.
//   - groups of a micro-batch are disjoint and cover the ranks; ranks ascend; an idle group is of
//   one
//     rank; groups of a weight domain are inside it,
//     unless weights are whole while a step lasts; shares are positive, one a rank
//   - each document stands in exactly one group of the whole plan; where documents have a source,
//     all have
//   - a named program exists, its layers add up to the model's, its strategies and recompute levels
//     are known and fit the group's size
//   - lock-step rule: within a micro-batch all groups of a domain use the same verb for the same
//     part and make the same layers again as a whole; groups that `hold` weights are of one size,
//     one after the other
//   - all ranks of a domain see the same sequence of collectives over it, and all ranks of a group
//     the same over the group (proved on the built programs when a model is given)
//   - placements name an axis each and dims of their streams, which the strategy can run from;
//   `out`
//     and `elements` are what the built programs give
//   - every rank's predicted footprint fits `memory_per_rank`, or its own of `memory_of_ranks`
//   (when given with a model)
std::vector<std::string> problems(const Plan& plan, const CheckContext& context = {});

// [rank] What a rank holds when it holds most, of all micro-batches.  Of a sound plan for this
// model.
std::vector<PredictedBytes> bytes_of_ranks(
    const Plan& plan, const Model& model, Precision precision, bool training = true);

}  // namespace paradyse
