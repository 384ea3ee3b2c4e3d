// What a planner of batches is asked, whatever the model.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/cost.h"
#include "paradyse/plan/detail/time_model.h"
#include "paradyse/plan/model.h"

namespace paradyse {

// What joins ranks of several nodes.
struct NodeLinks {
  struct Link {
    double bytes_per_second = 0;  // that a rank sends while all of its node do
    double latency_seconds = 0;

    friend bool operator==(const Link&, const Link&) = default;
  };
  Link inside_node = {};
  Link between_nodes = {};
  // A rank that sends to another node alone has what all of its node have together.
  bool node_shares_link = false;

  friend bool operator==(const NodeLinks&, const NodeLinks&) = default;
};

// What plans of batches are made for.  What names attention, MLP, options or planners is for
// language models: of others the layout is planned.
struct PlanningTask {
  Model model;
  DimSizes dims = {};  // of every sample of a batch that says nothing of them
  int ranks = 1;
  // Of a sharding group; 0: all.  Plans for fewer leave weights whole while a step lasts, so that
  // groups may have more ranks than that.
  int weight_domain = 0;
  int ranks_per_node = 0;               // one after the other; 0: all
  std::optional<NodeLinks> links = {};  // none: one node, or nothing is known of them
  std::vector<int> mesh = {};           // of the ranks, as in PlanGroup; of samples alone
  MachineNumbers machine;
  std::shared_ptr<const TimeModel> seconds = nullptr;  // null: closed_form(machine)
  // Of what is no part's; null: `seconds` where that goes by the work, or closed_form(machine).
  std::shared_ptr<const TimeModel> by_work = nullptr;
  double step_seconds = 0;  // of a step, beside its micro-batches: optimizer and agreement
  Precision precision = {};
  std::int64_t memory_per_rank = 0;       // bytes; 0: no limit
  double memory_overhead = 0;             // what a rank needs beyond its count, a share of it
  bool training = true;                   // else forward passes alone: nothing is saved
  bool offload = false;                   // saved tensors may wait in host memory
  std::string attention = {};             // a strategy's name, or "" for any
  std::string mlp = {};                   // a verb or strategy's name, or "" for any
  std::string recompute = {};             // recompute_names(), or "" for any
  std::string gather_weights = {};        // "micro-batch" or "step", or "" for any
  std::vector<std::string> without = {};  // strategies that are not to be used
  // Of strategies that have them; others are planned with their own default, or, where
  // `try_options` and the seconds go by the work, with what is worth a try (Option::candidates).
  std::map<std::string, std::int64_t> options = {};
  bool try_options = true;
  bool mix = true;        // layers may differ from each other
  bool mix_parts = true;  // attention and MLP of a layer may run unlike strategies; else one verb
  std::string planner = "exact";         // of the layers: layer_planners()
  std::string batch_planner = "groups";  // batch_planners()
  bool smoothing = true;  // "paper": the program of before stays while it fits and is within 5 %

  [[nodiscard]] int on_a_node() const { return ranks_per_node == 0 ? ranks : ranks_per_node; }
  [[nodiscard]] int domain() const { return weight_domain == 0 ? ranks : weight_domain; }
  [[nodiscard]] Keeps keeps() const { return training ? Keeps::optimizer : Keeps::weights; }
};

}  // namespace paradyse
