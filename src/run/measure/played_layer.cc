#include "src/run/measure/played_layer.h"

#include <algorithm>
#include <array>
#include <vector>

#include <c10/core/InferenceMode.h>

#include "paradyse/plan/cost.h"
#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/plan.h"
#include "paradyse/plan/strategy.h"
#include "paradyse/run/communicator.h"
#include "paradyse/run/session.h"
#include "src/plan/plan/group_timeline.h"
#include "src/run/data/synthetic_items.h"
#include "src/run/device/device.h"
#include "src/run/execute/breakdown.h"
#include "src/run/measure/measure.h"

namespace paradyse {
namespace {

constexpr std::int64_t kVocabulary = 512;
constexpr int kColdRepeats = 2;  // handles, workspaces and memory are made
constexpr int kRepeats = 7;

// The first layer of it, without adapters, windows and dropout, and with a small vocabulary.
Model one_layer(const Model& model, std::int64_t tokens) {
  OtherSizes sizes{.layers = 1, .vocab = std::min(model.vocab(), kVocabulary), .window = 0};
  if (model.learned_positions() > 0) {
    sizes.positions = std::max(model.learned_positions(), tokens);
  }
  return without_dropout(with_sizes(model_from_config(model.config, model.name), sizes));
}

// Numbers like a model's: a device computes faster with zeros.
void fill(Parameters& parameters) {
  const c10::InferenceMode no_autograd;
  for (PartParameters& part : parameters.parts()) {
    if (part.stack.defined()) {
      part.stack.normal_(0, 0.02);
    }
    for (const at::Tensor& vector : part.vectors) {
      vector.fill_(1);
    }
  }
}

}  // namespace

PlayedLayer play_layer(
    const Model& model, Dtype dtype, std::int64_t tokens, c10::Device device, bool backward) {
  const Model layer = one_layer(model, tokens);
  const Plan plan = uniform_plan(layer, {tokens}, 1, {text_layer("MegatronTS", "hold")});
  PlayedLayer played;
  const RankPart part = rank_part(plan, plan.micro_batches.front(), layer, 0, backward);
  const Totals counted = totals(part.timeline, part.seat, precision_of(dtype));
  for (const Work& work : {counted.forward, counted.recompute, counted.backward}) {
    played.matmul_flops += work.matmul_flops;
    played.attention_flops += work.attention_flops;
    played.touched_bytes += work.touched_bytes;
  }
  std::array<std::vector<double>, Breakdown::kParts> seconds;
  run_local_ranks(1, {}, [&, on = numbered(device)](Communicators& communicators) {
    make_current(on);
    Breakdown breakdown;
    RankSession session(
        communicators,
        layer,
        {.dtype = dtype, .gradients = backward, .device = device, .breakdown = &breakdown});
    fill(session.parameters());
    const std::vector<OwnedItem> data = synthetic_items(layer, sizes_of(plan));
    const std::vector<Item> items = items_of(data);
    for (int i = 0; i < kColdRepeats + kRepeats; ++i) {
      if (backward) {
        session.parameters().zero_gradients();
      }
      breakdown.restart();
      session.play(plan, {.items = items}, backward);
      const auto found = breakdown.seconds();
      for (std::size_t p = 0; i >= kColdRepeats && p < found.size(); ++p) {
        seconds[p].push_back(found[p]);
      }
    }
  });
  played.products = spread_of(seconds[Breakdown::products]);
  played.attention = spread_of(seconds[Breakdown::attention]);
  played.other = spread_of(seconds[Breakdown::other]);
  release_cached(device);
  return played;
}

}  // namespace paradyse
