// What `paradyse check` computes: every strategy and recompute level on a few small models, each
// loss and gradient against the one-rank reference, each count against the folds.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/dtype.h"
#include "paradyse/plan/model.h"
#include "paradyse/plan/plan.h"
#include "paradyse/plan/strategy.h"
#include "paradyse/run/backend.h"
#include "paradyse/run/data.h"
#include "paradyse/run/detail/item.h"
#include "paradyse/run/weights.h"
#include "src/plan/base/progress_hook.h"
#include "src/run/reference/reference.h"

namespace paradyse {

// A model and one batch.
struct CheckSubject {
  std::string name;
  Model model;
  std::function<void(Parameters& parameters)> fill;
  std::vector<Document> documents;  // of a masked LM with labels

  [[nodiscard]] std::vector<Item> items() const { return items_of(documents); }
};

// On documents of `lengths`, or of as many tokens as the model has positions; the same ones on
// every machine.
CheckSubject check_subject(
    const std::string& name,
    const Model& model,
    const std::function<void(Parameters& parameters)>& fill,
    const std::vector<std::int64_t>& lengths = {1, 9, 2, 17, 3});

// Of every architecture, with sizes that 2, 3 and 4 do not divide; documents of 1, 2 and 3
// tokens among longer ones; a causal and a bidirectional one that CUDA's flash attention takes.
std::vector<CheckSubject> built_in_subjects();

// Loss and gradients by the reference in float64, from the weights as ranks of this type hold them.
reference::Answer expected_answer(const CheckSubject& subject, Dtype dtype);

// What layers of a check make again: every level, and a layer as a whole.
inline constexpr LayerRecompute kCheckedLevels[] = {
    {.parts = Recompute::none},
    {.parts = Recompute::light},
    {.parts = Recompute::attention_output},
    {.parts = Recompute::full},
    {.parts = Recompute::light, .layer = true}};

struct CheckRequest {
  std::vector<CheckSubject> subjects = built_in_subjects();
  std::vector<int> ranks = {1, 2, 3, 4};
  std::vector<Dtype> dtypes = {Dtype::float64, Dtype::float32};
  std::vector<std::string> strategies = {};  // empty: all
  bool quick = false;                        // few cases that cover it (check_cases)
  std::shared_ptr<Backend> backend = local_backend();
  c10::Device device = c10::Device(c10::kCPU);
  // The judge; a test puts a wrong one here.
  std::function<reference::Answer(const CheckSubject& subject, Dtype dtype)> expected =
      expected_answer;
  ProgressHook progress = {};
};

// What one layer runs, and the layer after it, and so on in turn.
struct CheckWay {
  std::string name;                                         // "UlyssesZ+gather"
  std::vector<std::pair<std::string, std::string>> layers;  // attention, mlp
};
// Every strategy, or those `wanted`, with its own verb of the MLP and with the others; layers that
// differ.
std::vector<CheckWay> check_ways(const std::vector<std::string>& wanted = {});

// One run of a check: places in the lists of the request (and check_ways), and how messages travel.
struct CheckChoice {
  std::size_t dtype = 0;
  std::size_t way = 0;
  std::size_t level = 0;  // of kCheckedLevels
  std::size_t ranks = 0;
  std::size_t subject = 0;
  Messages messages = {.overlap = true};

  friend bool operator==(const CheckChoice&, const CheckChoice&) = default;
};

// At most so many in a quick check.
inline constexpr std::size_t kQuickCases = 150;
// How many a check has in all.
std::size_t all_check_cases(const CheckRequest& request);
// All of them, by type, way, level, ranks and subject; or, quick, a choice that the request alone
// decides: every way in every type; as far as there is room, on every number of ranks.  Levels,
// subjects, and whether messages travel beside work and weights are kept, take turns.
std::vector<CheckChoice> check_cases(const CheckRequest& request);
// What is played in it.
Plan plan_of(const CheckRequest& request, const CheckChoice& choice);

struct CheckError {
  double error = 0;      // relative, as gradients.h; infinite where something is no number
  double tolerance = 0;  // of that gradient, in narrow types
  std::string place;     // "gqa 6/2, 3 ranks, loss"; "": nothing was run

  [[nodiscard]] bool near() const { return error <= tolerance; }
  [[nodiscard]] double share() const { return error / tolerance; }
};

// What one way to run the layers came to, over all subjects.
struct CheckRow {
  std::string way;  // "UlyssesZ+gather"
  std::string recompute;
  Dtype dtype = Dtype::float32;
  std::vector<CheckError> losses;          // the worst; [index of ranks]
  std::vector<CheckError> gradients;       // the worst; [index of ranks]
  std::vector<std::string> counts_differ;  // what the run counted but the folds did not say

  // On the i-th number of ranks: the error that is nearest to its tolerance, or furthest beyond.
  [[nodiscard]] const CheckError& worst(std::size_t i) const;
  [[nodiscard]] bool near() const;  // every error is within its tolerance
  [[nodiscard]] bool right() const { return near() && counts_differ.empty(); }
};

// The cases of the request, a row for each way, recompute level and type.
// In the process that leads (backend.h); elsewhere without rows.
// Throws std::invalid_argument for an unknown type, and what gradients() throws.
std::vector<CheckRow> check(const CheckRequest& request);

}  // namespace paradyse
