// What a rank says when something that it waits for fails.
#include "src/run/comm/gloo/watch.h"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/run/communicator.h"
#include "src/run/comm/nccl/interface.h"
#include "tests/support/refusal.h"

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
      std::make_shared<rendezvous::Table>(), 0, 1, std::chrono::seconds(30), "the test's store");
  Failing message(fail);
  return test::refusal<CommunicatorError>([&] {
    watch.await(message, {.rank = 0, .where = "operation 1", .what = "gather of layer 3"});
  });
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
  EXPECT_EQ(said_of([] {}), "");
}

// --- what others write ---------------------------------------------------------------------------

TEST(WaitState, IsReadAsItWasWritten) {
  const gloo::Wait wait{.rank = 2, .where = "operation 5 of ranks 0, 2", .what = "barrier"};
  const auto read = gloo::wait_in(gloo::state_text(3, wait), 1, 3);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->rank, 2);
  EXPECT_EQ(read->where, wait.where);
  EXPECT_EQ(read->what, wait.what);
  EXPECT_FALSE(gloo::wait_in(gloo::state_text(4, std::nullopt), 1, 3));
  EXPECT_FALSE(gloo::wait_in("{}", 1, 3));
}

// Each would once have been an index, or the end of the process.
const std::vector<std::string>& made_up_states() {
  static const std::vector<std::string> all = {
      R"({"for": -1, "where": "w", "what": "w"})",
      R"({"for": 3, "where": "w", "what": "w"})",
      R"({"for": 2147483648, "where": "w", "what": "w"})",
      R"({"for": 4294967296, "where": "w", "what": "w"})",
      R"({"for": 18446744073709551615, "where": "w", "what": "w"})",
      R"({"for": -9223372036854775808, "where": "w", "what": "w"})",
      R"({"for": 1e300, "where": "w", "what": "w"})",
      R"({"for": 1.0, "where": "w", "what": "w"})",
      R"({"for": "1", "where": "w", "what": "w"})",
      R"({"for": null, "where": "w", "what": "w"})",
      R"({"for": 1})",
      R"({"for": 1, "where": 2, "what": "w"})",
      R"({"for": 1, "where": "w", "what": ["w"]})",
      R"([1, 2])",
      R"("for")",
      R"({"for": 1, "where")",
      "",
      std::string("\0", 1),
      "\x1b[2J\x1b]0;owned\x07",
      std::string(1000, '['),
      "{\"for\": 1, \"where\": \"" + std::string(1 << 17, 'w') + "\", \"what\": \"w\"}"};
  return all;
}

TEST(WaitState, OfNoRankIsRefused) {
  for (const std::string& state : made_up_states()) {
    EXPECT_THAT(
        test::refusal<std::runtime_error>([&] { gloo::wait_in(state, 1, 3); }),
        AllOf(HasSubstr("rank 1"), HasSubstr("another program writes"), Not(HasSubstr("\x1b"))));
  }
}

// A message that nobody sends, until it is aborted.
class Endless final : public gloo::Message {
 public:
  bool wait(std::chrono::milliseconds deadline) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, deadline, [&] { return aborted_; })) {
      throw std::runtime_error("past the deadline");
    }
    return false;
  }
  void abort() override {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool aborted_ = false;
};

// What rank 0 of 3 says that waits for rank 1, where the store says `key` is `value`.
std::string said_with(const std::string& key, const std::string& value, int deadline_ms = 20000) {
  const auto store = std::make_shared<rendezvous::Table>();
  for (const char* const state : {"state/1", "state/2"}) {
    store->set(state, "{}");
  }
  store->set(key, value);
  gloo::Watch watch(store, 0, 3, std::chrono::milliseconds(deadline_ms), "the test's store");
  Endless message;
  try {
    watch.await(message, {.rank = 1, .where = "operation 1", .what = "gather of layer 3"});
  } catch (const CommunicatorError& error) {
    return error.what();
  } catch (const Aborted& error) {
    return std::string("aborted: ") + error.what();
  }
  return "nothing";
}

TEST(Watch, SurvivesMadeUpStates) {
  for (const std::string& state : made_up_states()) {
    EXPECT_THAT(
        said_with("state/1", state, 1000),
        AllOf(
            HasSubstr("rank 1"),
            HasSubstr(state.empty() ? "no sign of life" : "another program writes there"),
            Not(HasSubstr("lost the rendezvous")),
            Not(HasSubstr("\x1b")),
            Not(HasSubstr("owned\x07"))));
  }
}

TEST(Watch, PrintsNoControlCharactersOfOthers) {
  const std::string failed = said_with("failed", "rank 1 failed: \x1b[2J\x1b[31mall is well\r");
  EXPECT_EQ(failed, "aborted: rank 1 failed: \\x1b[2J\\x1b[31mall is well\\x0d");
  const std::string disagree = said_with(
      "state/1", R"({"for": 2, "where": "operation 1", "what": "\u001b[2Jnothing\u0007"})", 2000);
  EXPECT_THAT(
      disagree, AllOf(HasSubstr("ranks disagree about operation 1"), HasSubstr("\\x1b[2Jnothing")));
  const std::string late =
      said_with("state/1", R"({"for": 2, "where": "elsewhere", "what": "\u001b[2Jnothing"})", 1000);
  EXPECT_THAT(late, AllOf(HasSubstr("waits in \\x1b[2Jnothing"), Not(HasSubstr("\x1b"))));
}

TEST(SocketInterface, IsTheNamedOneUnlessSet) {
  EXPECT_EQ(nccl::socket_interface("eth1", nullptr), "=eth1");  // not eth10
  EXPECT_EQ(nccl::socket_interface("eth1", "ib"), std::nullopt);
  EXPECT_EQ(nccl::socket_interface("eth1", ""), std::nullopt);
  EXPECT_EQ(nccl::socket_interface("", nullptr), std::nullopt);
}

}  // namespace
}  // namespace paradyse
