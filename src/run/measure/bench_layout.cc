#include "src/run/measure/bench_layout.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "paradyse/plan/index.h"
#include "paradyse/run/session.h"
#include "src/run/data/synthetic_samples.h"
#include "src/run/execute/gather.h"
#include "src/run/measure/measure.h"

namespace paradyse {
namespace {

std::vector<LayoutWay> ways_of(const BenchLayoutRequest& request, const Model& model) {
  std::vector<LayoutWay> all = layout_ways(
      {.model = &model,
       .documents = request.documents,
       .recompute = request.recompute,
       .objective =
           request.seconds ? LayoutTask::Objective::seconds : LayoutTask::Objective::elements,
       .seconds = request.seconds});
  std::string names;
  for (const LayoutWay& way : all) {
    names += (names.empty() ? "" : ", ") + way.name;
  }
  for (const std::string& way : request.ways) {
    if (std::ranges::find(all, way, &LayoutWay::name) == all.end()) {
      throw std::invalid_argument(
          "'" + way + "' is not a layout of this model; there are " + names);
    }
  }
  if (!request.ways.empty()) {
    std::erase_if(all, [&](const LayoutWay& way) {
      return std::ranges::find(request.ways, way.name) == request.ways.end();
    });
  }
  return all;
}

}  // namespace

std::vector<BenchLayoutRow> bench_layout(const BenchLayoutRequest& request) {
  const Model& model = request.model;
  std::vector<LayoutWay> ways = ways_of(request, model);
  for (LayoutWay& way : ways) {
    way.plan.messages.overlap = request.memory_per_rank == 0;
  }
  const std::vector<std::int64_t>& lengths = request.documents.lengths;
  std::vector<Sample> samples;
  std::vector<std::vector<std::int32_t>> documents;
  if (model.of_samples()) {
    samples =
        synthetic_samples(model, request.documents.dims, static_cast<std::int64_t>(lengths.size()));
  } else {
    documents = synthetic_documents(lengths.size(), lengths.front(), model.vocab());
  }
  const std::vector<const Sample*> of_samples = pointers(samples);
  const std::vector<const std::vector<std::int32_t>*> of_documents = pointers(documents);
  Batch batch = synthetic_batch(of_documents, model);
  batch.samples = of_samples;
  std::vector<BenchLayoutRow> rows;
  for (const LayoutWay& way : ways) {
    rows.push_back({.way = way.name, .seconds = {}});
  }
  request.backend->run(request.documents.ranks(), [&](Communicators& communicators) {
    RankSession session(
        communicators, model, {.dtype = request.dtype, .memory_bytes = request.memory_per_rank});
    session.parameters().initialize(1);
    Communicator& world = session.world();
    for (int round = 0; round <= request.repeats; ++round) {
      for (std::size_t way = 0; way < ways.size(); ++way) {
        if (request.progress && session.rank() == 0) {
          request.progress(
              round * std::ssize(ways) + static_cast<std::int64_t>(way),
              (request.repeats + 1) * std::ssize(ways),
              ways[way].name);
        }
        double seconds = 0;
        BatchResult result;
        std::int64_t sent = 0;
        for (const bool counts : {false, true}) {
          session.parameters().zero_gradients();
          session.memory().reset_peak();
          world.barrier({.op = counts ? "bench: a step" : "bench: warm", .part = ""});
          const std::int64_t before = communicators.counters().bytes_sent;
          const auto begin = std::chrono::steady_clock::now();
          result = session.play(ways[way].plan, batch, /*backward=*/true);
          world.barrier({.op = "bench", .part = ""});
          seconds = seconds_since(begin);
          sent = communicators.counters().bytes_sent - before;
        }
        const auto numbers =
            gather({sent, session.memory().peak_bytes(), result.saved_bytes}, world);
        if (session.rank() != 0 || round == 0) {
          continue;
        }
        BenchLayoutRow& row = rows[way];
        row.seconds.push_back(seconds);
        row.bytes_sent = 0;
        for (const std::vector<std::int64_t>& of_rank : numbers) {
          row.bytes_sent += of_rank[0];
          row.peak_bytes = std::max(row.peak_bytes, of_rank[1]);
          row.saved_bytes = std::max(row.saved_bytes, of_rank[2]);
        }
      }
    }
  });
  return request.backend->leads() ? rows : std::vector<BenchLayoutRow>{};
}

}  // namespace paradyse
