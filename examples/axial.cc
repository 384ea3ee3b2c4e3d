// A multi-axis transformer of your own: axial attention along the frames, then the height, then the
// width of a film, trained to predict what comes next.  The model is described by its streams and
// parts.  How a stream is sharded before each part is planned, and so is which ranks run a long and
// a short film at the same time.
#include <algorithm>
#include <cstdio>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/layout_planner.h"
#include "paradyse/plan/model_folder.h"
#include "paradyse/plan/parts.h"
#include "paradyse/run/backend.h"
#include "paradyse/run/session.h"

using namespace paradyse;  // an example may
namespace {

constexpr std::int64_t kColours = 3;

Model axial_model(std::int64_t layers) {
  const PartShape shape{
      .hidden = 16,
      .heads = 4,
      .kv_heads = 4,
      .head_dim = 4,
      .ffn = 32,
      .activation = Activation::gelu};
  Model model{
      .name = "axial",
      .streams = {{"x", {"frames", "height", "width"}, shape.hidden, "frames"}},
      .parts = {},
      .causal = false,
      .initializer_range = 0.2};
  std::vector<Part> layer;
  for (const std::string dim : {"frames", "height", "width"}) {
    layer.push_back(attention_part("along_" + dim, "x", dim, shape));
    layer.push_back(mlp_part("mlp_" + dim, "x", shape));
  }
  add_end(model, projection_part("embedding", "x", "film", kColours, shape));
  add_layers(model, layers, layer);
  add_end(model, prediction_part("head", "x", "next", kColours, shape));
  return model;
}

}  // namespace

int main() {
  constexpr int kRanks = 4;
  add_model_family({.name = "axial", .variants = {axial_model(1)}});
  const Model model = axial_model(2);
  LayoutTask task{.model = &model, .documents = packed({6 * 5 * 4}, kRanks, /*causal=*/false)};
  task.documents.dims = {{"frames", 6}, {"height", 5}, {"width", 4}};  // 4 ranks divide one evenly
  int switches = 0;
  for (const std::vector<PlannedPart>& layer : plan_layouts(task, model.layers).layers) {
    for (const PlannedPart& part : layer) {
      switches += static_cast<int>(
          std::ranges::count(part.moves, std::string("all_to_all"), &PlannedMove::collective));
    }
  }
  std::printf("%d switches for 6 attentions\n", switches);

  const at::Tensor wave =
      at::sin(at::arange(7 * 5 * 4 * kColours, at::kFloat) * 0.7).view({7, 5, 4, kColours});
  std::vector<Sample> films;
  BatchSizes batch;
  for (const std::int64_t frames : {6, 2, 2}) {
    films.push_back(
        {.inputs = {{"film", wave.narrow(0, 0, frames)}, {"next", wave.narrow(0, 1, frames)}}});
    batch.dims.push_back({{"frames", frames}, {"height", 5}, {"width", 4}});
    batch.lengths.push_back(model.rows(batch.dims.back()));
  }
  PlanningTask planning{.model = model, .ranks = kRanks, .machine = {}, .batch_planner = "groups"};
  planning.machine.cores = kRanks;
  const Plan plan = batch_planner(planning)->plan(batch).plan.value();
  const std::size_t groups = plan.micro_batches.front().groups.size();
  std::printf("3 films on 4 ranks: %zu groups at the same time\n", groups);
  const std::vector<Item> items = items_of(films);
  std::vector<double> losses;
  local_backend()->run(kRanks, [&](Communicators& communicators) {
    RankSession session(communicators, model);
    session.parameters().initialize(1);
    for (int step = 0; step < 100; ++step) {
      session.parameters().zero_gradients();
      const BatchResult result = session.play(plan, {.items = items}, /*backward=*/true);
      for (PartParameters& part : session.parameters().parts()) {  // plain gradient descent
        part.stack.sub_(part.stack_grad, 0.1);
        for (std::size_t v = 0; v < part.vectors.size(); ++v) {
          part.vectors[v].sub_(part.vector_grads[v], 0.1);
        }
      }
      if (session.rank() == 0) {
        losses.push_back(result.loss);
      }
    }
  });
  std::printf("loss %.4f -> %.4f\n", losses.front(), losses.back());
  return losses.back() < losses.front() / 2 && switches <= 2 && groups > 1 ? 0 : 1;
}
