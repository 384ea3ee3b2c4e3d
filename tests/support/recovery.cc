#include "tests/support/recovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/run/accountant.h"
#include "src/run/execute/within_memory.h"

namespace paradyse::test {

void play_until_memory_suffices(
    const Plan& plan,
    const std::vector<Item>& items,
    RankSession& session,
    const std::string& reason) {
  for (;;) {
    session.parameters().zero_gradients();
    const std::int64_t before = session.memory().live_bytes();
    const auto lack =
        within_memory(session.communicators(), [&] { session.play(plan, {.items = items}, true); });
    if (!lack) {
      return;
    }
    EXPECT_THAT(*lack, testing::HasSubstr(reason));
    EXPECT_EQ(session.memory().live_bytes(), before);
  }
}

std::vector<at::Tensor> held_gradients(Parameters& parameters) {
  std::vector<at::Tensor> gradients;
  for (const PartParameters& part : parameters.parts()) {
    gradients.push_back(part.stack_grad.clone());
    for (const at::Tensor& grad : part.vector_grads) {
      gradients.push_back(grad.clone());
    }
  }
  return gradients;
}

}  // namespace paradyse::test
