// How many calls a step gives a device, and how often the host waits for it: counted on a device
// that is not there (pretended_device.h), on one rank.  A kernel of our own counts as one call,
// also where it is two launches.  What no count may be more than stands at the head;
// PARADYSE_TEST_LONG=1 run.launches --gtest_filter=*Table* prints what each op takes.
#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/plan.h"
#include "paradyse/run/session.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/device/device.h"
#include "src/run/device/host_copies.h"
#include "src/run/weights/optimizer.h"
#include "tests/support/models.h"
#include "tests/support/plans.h"
#include "tests/support/pretended_device.h"
#include "tests/support/pretended_kernels.h"

namespace paradyse {
namespace {

using test::Calls;

// At most `now`, so that it never gets worse; `aim` is where it is to be.
struct Limit {
  std::int64_t now;
  std::int64_t aim;
};
constexpr Limit kLayer{32, 64};  // calls of a layer, forward and backward
constexpr Limit kLayerThroughAten{114, 190};
constexpr Limit kStep{565, 1300};         // calls of a step of 16 layers and its update
constexpr Limit kToHostMicroBatch{1, 1};  // copies to the host, a micro-batch
constexpr Limit kToHostStep{1, 2};        // and beside them a step
constexpr Limit kPageable{0, 0};          // copies from or to pageable memory, a step

struct Sizes {
  std::int64_t layers = 2;
  std::int64_t tokens = 256;
  std::int64_t vocab = 300;
  int micro_batches = 1;
  std::int64_t dense_from = 1024;  // SessionOptions::attention_dense_from
};

struct Step {
  Calls play;    // forward and backward
  Calls update;  // norm, clipping, optimizer

  [[nodiscard]] std::int64_t calls() const { return play.all() + update.all(); }
};

// The second step of a small LLaMA in bfloat16, one document a micro-batch.
Step step_of(const Sizes& sizes, const Kernels& kernels = test::pretended_kernels()) {
  use_kernels_of_other_devices(kernels);
  const TextShape model = test::llama(
      {.layers = sizes.layers,
       .heads = 2,
       .kv_heads = 1,
       .head_dim = 8,
       .hidden = 32,
       .ffn = 48,
       .vocab = sizes.vocab});
  const std::vector<std::int64_t> lengths(
      static_cast<std::size_t>(sizes.micro_batches), sizes.tokens);
  Plan plan = test::uniform_plan(model, lengths, 1, text_layer("MegatronTS", "hold"));
  plan.tiles = tiles_for(test::kPretended, model, Dtype::bfloat16);
  const PlanMicroBatch one = plan.micro_batches.front();
  plan.micro_batches.clear();
  for (int m = 0; m < sizes.micro_batches; ++m) {
    plan.micro_batches.push_back(one);
    plan.micro_batches.back().groups.front().documents = {m};
  }
  const auto all = test::random_documents(lengths, model.vocab, 5);
  const std::vector<Item> items = items_of(all);
  Step counted;
  test::begin_judging();
  run_local_ranks(1, {}, [&](Communicators& communicators) {
    RankSession session(
        communicators,
        text_model(model),
        {.dtype = Dtype::bfloat16,
         .masters = Masters::on_device,
         .device = test::kPretended,
         .attention_dense_from = sizes.dense_from});
    session.parameters().initialize(3);
    AdamW optimizer(session.parameters(), {});
    for (int step = 0; step < 2; ++step) {
      session.parameters().zero_gradients();
      test::take_calls();
      session.play(plan, {.items = items}, /*backward=*/true);
      counted.play = test::take_calls();
      const at::Tensor norm = gradient_norm(session.parameters(), session.domain());
      optimizer.step(1e-3, gradient_factor(norm, 1, 1));
      HostRead(norm).get();  // as training does, when all is queued
      counted.update = test::take_calls();
    }
  });
  return counted;
}

void print(const std::string& what, const Calls& calls) {
  std::printf(
      "%s: %lld calls (%lld kernels; to the device %lld pinned, %lld pageable; to the host %lld "
      "pinned, %lld pageable), %lld waits of the host\n",
      what.c_str(),
      static_cast<long long>(calls.all()),
      static_cast<long long>(calls.kernels),
      static_cast<long long>(calls.copies[0]),
      static_cast<long long>(calls.copies[1]),
      static_cast<long long>(calls.copies[2]),
      static_cast<long long>(calls.copies[3]),
      static_cast<long long>(calls.host_waits));
}

// For what, without the number of a layer; and which op.
void print_ops(const Calls& calls) {
  std::map<std::pair<std::string, std::string>, std::int64_t> sums;
  for (const auto& [key, count] : calls.by_op) {
    std::string label = key.first;
    if (label.starts_with("layer ")) {
      label = "layers" + label.substr(label.find(' ', 6));
    }
    sums[{label, key.second}] += count;
  }
  std::string label;
  for (const auto& [key, count] : sums) {
    if (key.first != label) {
      label = key.first;
      std::printf("  %s\n", label.c_str());
    }
    std::printf("    %5lld %s\n", static_cast<long long>(count), key.second.c_str());
  }
}

void print_table(const Kernels& kernels) {
  std::printf("--- by kernels \"%s\"\n", kernels.name);
  const Step two = step_of({}, kernels);
  const Step three = step_of({.layers = 3}, kernels);
  print("2 layers, 256 tokens, 300 ids: forward and backward", two.play);
  print("its update", two.update);
  std::printf(
      "a layer: %lld calls in forward and backward, %lld in the update\n",
      static_cast<long long>(three.play.all() - two.play.all()),
      static_cast<long long>(three.update.all() - two.update.all()));
  for (const auto& [what, sizes] : std::vector<std::pair<std::string, Sizes>>{
           {"2 layers, 4,096 tokens", {.tokens = 4096}},
           {"2 layers, 3 micro-batches", {.micro_batches = 3}},
           {"2 layers, 128,256 ids", {.vocab = 128256}},
           {"16 layers", {.layers = 16}}}) {
    const Step step = step_of(sizes, kernels);
    print(what + ": forward and backward", step.play);
    print("its update", step.update);
  }
  std::printf("by op, 2 layers:\n");
  print_ops(two.play);
  print_ops(two.update);
}

bool all_of_it() { return std::getenv("PARADYSE_TEST_LONG") != nullptr; }

TEST(Launches, Table) {
  if (!all_of_it()) {
    GTEST_SKIP() << "it only prints";
  }
  print_table(test::pretended_kernels());
  print_table(aten_kernels());
}

std::int64_t calls_of_layer(const Kernels& kernels) {
  return step_of({.layers = 3}, kernels).play.all() - step_of({.layers = 2}, kernels).play.all();
}

TEST(Launches, OfALayerAndAStep) {
  EXPECT_LE(calls_of_layer(test::pretended_kernels()), kLayer.now);
  EXPECT_LE(calls_of_layer(aten_kernels()), kLayerThroughAten.now);
  EXPECT_LE(step_of({.layers = 16}).calls(), kStep.now);
}

// Not by tokens or ids: tiles are as large as a GPU takes them.
TEST(Launches, AreAsManyWhateverTheSizes) {
  const Step step = step_of({});
  EXPECT_EQ(step_of({.vocab = 128256}).calls(), step.calls());
  for (const std::int64_t dense_from : {1 << 20, 256}) {  // by flash, by cuDNN
    if (dense_from == 256 && !all_of_it()) {
      break;
    }
    EXPECT_EQ(
        step_of({.tokens = 4096, .dense_from = dense_from}).calls(),
        step_of({.tokens = 256, .dense_from = dense_from}).calls());
  }
}

// The host reads once a micro-batch, and twice a step.
TEST(Launches, HostStopsSeldom) {
  for (const int micro_batches : {1, 3}) {
    const Step step = step_of({.micro_batches = micro_batches});
    EXPECT_LE(
        step.play.to_host() + step.update.to_host(),
        kToHostMicroBatch.now * micro_batches + kToHostStep.now);
    EXPECT_LE(step.play.pageable() + step.update.pageable(), kPageable.now);
  }
}

}  // namespace
}  // namespace paradyse
