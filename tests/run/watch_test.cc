// What a rank says when something that it waits for fails.
#include "src/run/comm/gloo/watch.h"

#include <functional>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/run/communicator.h"
#include "src/run/comm/nccl/interface.h"

namespace paradyse {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Failing final : public gloo::Message {
 public:
  explicit Failing(std::function<void()> fail) : fail_(std::move(fail)) {}
  bool wait(std::chrono::milliseconds /*deadline*/) override {
    fail_();
    return true;
  }
  void abort() override {}

 private:
  std::function<void()> fail_;
};

std::string said_of(const std::function<void()>& fail) {
  gloo::Watch watch(
      gloo::serve_store("127.0.0.1", 0), 0, 1, std::chrono::seconds(30), "the test's store");
  Failing message(fail);
  try {
    watch.await(message, {.rank = 0, .where = "operation 1", .what = "gather of layer 3"});
  } catch (const CommunicatorError& error) {
    return error.what();
  }
  return "nothing";
}

TEST(Watch, TellsALostConnectionFromALibrarysError) {
  EXPECT_THAT(
      said_of([] { throw std::runtime_error("reset by peer"); }),
      AllOf(HasSubstr("is gone"), HasSubstr("gather of layer 3"), HasSubstr("reset by peer")));
  EXPECT_THAT(
      said_of([] { throw CommunicatorError("nccl: an operation failed: unhandled cuda error"); }),
      AllOf(
          Not(HasSubstr("gone")),
          HasSubstr("gather of layer 3"),
          HasSubstr("nccl: an operation failed: unhandled cuda error")));
  EXPECT_EQ(said_of([] {}), "nothing");
}

TEST(SocketInterface, IsTheNamedOneUnlessSet) {
  EXPECT_EQ(nccl::socket_interface("eth1", nullptr), "=eth1");  // not eth10
  EXPECT_EQ(nccl::socket_interface("eth1", "ib"), std::nullopt);
  EXPECT_EQ(nccl::socket_interface("eth1", ""), std::nullopt);
  EXPECT_EQ(nccl::socket_interface("", nullptr), std::nullopt);
}

}  // namespace
}  // namespace paradyse
