// A transformer of several dims of your own: an axial one that attends along frames, then height,
// then width of a film, and learns what comes next.  Its streams and parts describe it; where the
// stream lies before each part is planned, and the run follows.
#include <cstdio>

#include "paradyse/plan/layout_planner.h"
#include "paradyse/plan/parts.h"
#include "paradyse/run/backend.h"
#include "paradyse/run/session.h"

using namespace paradyse;  // an example may
namespace {

constexpr std::int64_t kColours = 3;

Model axial_model() {
  const PartShape shape{
      .hidden = 16,
      .heads = 4,
      .kv_heads = 4,
      .head_dim = 4,
      .ffn = 32,
      .activation = Activation::gelu};
  Model model{
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
  add_layers(model, 2, layer);
  add_end(model, prediction_part("head", "x", "next", kColours, shape));
  return model;
}

}  // namespace

int main() {
  constexpr int kRanks = 4;
  const Model model = axial_model();
  LayoutTask task{.model = &model, .documents = packed({6 * 5 * 4}, kRanks, /*causal=*/false)};
  task.documents.dims = {{"frames", 6}, {"height", 5}, {"width", 4}};  // 4 ranks divide one
  const LayoutPlan layouts = plan_layouts(task, model.layers);
  int switches = 0;
  for (const std::vector<PlannedPart>& layer : layouts.layers) {
    for (const PlannedPart& part : layer) {
      for (const PlannedMove& move : part.moves) {
        if (move.collective == "all_to_all") {
          std::printf("switched before %s\n", part.choice.part.c_str());
          ++switches;
        }
      }
    }
  }
  std::printf("%d switches for 6 attentions\n", switches);

  const at::Tensor wave =
      at::sin(at::arange(7 * 5 * 4 * kColours, at::kFloat) * 0.7).view({7, 5, 4, kColours});
  const Sample film{.inputs = {{"film", wave.narrow(0, 0, 6)}, {"next", wave.narrow(0, 1, 6)}}};
  const std::vector<const Sample*> samples = {&film};
  std::vector<double> losses;
  local_backend()->run(kRanks, [&](Communicators& communicators) {
    RankSession session(communicators, model);
    session.parameters().initialize(1);
    for (int step = 0; step < 100; ++step) {
      session.parameters().zero_gradients();
      const BatchResult result = session.play(
          plan_of(task, layouts), {.documents = {}, .samples = samples}, /*backward=*/true);
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
  return losses.back() < losses.front() / 2 && switches <= 2 ? 0 : 1;
}
