// What is behind RankSession: session.cc sets it up, play.cc plays with it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "paradyse/run/session.h"
#include "src/run/data/micro_batch.h"
#include "src/run/device/device.h"
#include "src/run/device/host_copies.h"
#include "src/run/device/stopwatch.h"
#include "src/run/execute/kept_programs.h"
#include "src/run/execute/operation_seconds.h"
#include "src/run/execute/part_times.h"
#include "src/run/execute/whole_weights.h"
#include "src/run/ops/rank_context.h"

namespace paradyse {

struct RankSession::State {
  State(Communicators& of_rank, const Model& model, const SessionOptions& given);

  // hash(plan), which is made once of a plan that comes several times in a row.
  const std::string& hash_of(const Plan& plan);
  void remember(Plan plan, std::string sha256);

  void note(
      const char* what, const char* category, std::chrono::steady_clock::time_point begin) const;

  // Gathered, where the plan leaves weights whole while a step lasts.
  std::optional<WholeWeights> whole_for(const Plan& plan, bool gradients);

  // This rank's part of a micro-batch; `first_tokens`: of every document in the batch.
  struct Played {
    std::size_t of_group = 0;  // index
    MicroBatch tokens;
    MicroBatchResult result;
    HostRead losses;  // of the result
    Stopwatch whole = {};
    OperationSeconds domain = {};
    OperationSeconds group = {};  // where the host waits for them
    // [part of the timeline] Its place among costed_parts(), where parts are timed.
    std::vector<std::size_t> places = {};
  };
  Played play(
      const Plan& plan,
      const PlanMicroBatch& micro_batch,
      std::vector<PartParameters>& weights,
      const Batch& batch,
      std::span<const std::int64_t> first_tokens,
      bool backward,
      double loss_scale,
      double& switching_seconds);
  // Whether parts are timed in the batch that begins (SessionOptions::times_parts).
  [[nodiscard]] bool times_this(bool backward) const;
  // [micro-batch] BatchResult::part_seconds, of the batch that ends.
  std::vector<std::vector<double>> part_seconds(
      const Plan& plan, const std::vector<Played>& played);

  Communicators& communicators;
  const SessionOptions options;
  const std::vector<int> domain_ranks;
  const std::vector<int> replica_ranks;
  // In this order: tensors go before the scope that counts them, and all before the device's
  // stream, which is waited for.
  const DeviceScope computing;
  Accountant memory;
  const MemoryScope scope;
  Parameters parameters;

  const Kernels& kernels;
  KeptPrograms programs;
  std::optional<WholeStacks> stacks;  // made for the first plan that leaves weights whole
  std::optional<std::pair<Plan, std::string>> known;  // the last plan, and its hash
  PartTimes part_times;
  bool timing = false;            // this batch
  std::int64_t trained_with = 0;  // batches that are through: the same on all ranks
};

}  // namespace paradyse
