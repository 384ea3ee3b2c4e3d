// What the rendezvous answers to bytes, without a socket; and the corpus of its fuzzer.
#include "src/run/comm/rendezvous/conversation.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/run/rendezvous_input.h"

namespace paradyse::rendezvous {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

struct Keeper {
  std::vector<std::string> notices = {};
  Reception reception{
      .root = root_key("a secret of this test's own run"),
      .store = std::make_shared<Table>(),
      .notice = [this](const std::string& address, const std::string& why) {
        notices.push_back(address + ": " + why);
      }};
};

std::string taken_from(std::string& leaving) { return std::exchange(leaving, ""); }

// A process that was let in, or was told why not.
struct Process {
  Process(Conversation& conversation, const Key& root, const Claim& claim) {
    const std::string asked = taken_from(conversation.leaving());
    const std::string said = hello(root, asked, claim);
    stays = conversation.take(said);
    std::string answer = taken_from(conversation.leaving());
    verdict = verdict_in(answer, root, asked, said);
    session = rendezvous::session(root, asked, said);
  }

  bool stays = false;
  std::optional<Verdict> verdict;
  std::optional<Session> session;
};

TEST(Conversation, AnswersRequestsOfWhoKnowsTheSecret) {
  Keeper keeper;
  Conversation conversation(keeper.reception, "192.0.2.7", challenge());
  EXPECT_TRUE(conversation.stranger());
  EXPECT_EQ(conversation.room(), kMostHello);
  Process process(
      conversation, keeper.reception.root, {.attempt = "", .rank = 3, .process = "process 9"});
  ASSERT_TRUE(process.stays);
  EXPECT_EQ(process.verdict->answer, Answer::accepted);
  EXPECT_FALSE(conversation.stranger());
  EXPECT_GT(conversation.room(), kMostHello);
  std::string sent = process.session->to_rendezvous.seal(request(Command::set, {"key", "value"}));
  sent += process.session->to_rendezvous.seal(request(Command::get, {"key"}));
  // A byte at a time: nothing is answered before a message is whole.
  for (std::size_t i = 0; i < sent.size(); ++i) {
    EXPECT_TRUE(conversation.take(sent.substr(i, 1)));
  }
  std::string answers = taken_from(conversation.leaving());
  EXPECT_THAT(values_in(process.session->to_process.open(answers).value()), ElementsAre());
  EXPECT_THAT(values_in(process.session->to_process.open(answers).value()), ElementsAre("value"));
  EXPECT_EQ(answers, "");
  EXPECT_THAT(keeper.notices, ElementsAre());
}

TEST(Conversation, EndsAtAMessageThatNobodySealedAndSaysSo) {
  Keeper keeper;
  Conversation conversation(keeper.reception, "192.0.2.7", challenge());
  Process process(
      conversation, keeper.reception.root, {.attempt = "", .rank = -1, .process = "process 9"});
  std::string sent = process.session->to_rendezvous.seal(request(Command::set, {"key", "value"}));
  sent.back() = static_cast<char>(sent.back() ^ 1);
  EXPECT_FALSE(conversation.take(sent));
  EXPECT_EQ(keeper.reception.store->get("key"), std::nullopt);
  EXPECT_THAT(keeper.notices, ElementsAre(HasSubstr("192.0.2.7: a message is not authentic")));
}

TEST(Conversation, TakesNoMoreThanAGreetingOfAStranger) {
  Keeper keeper;
  Conversation conversation(keeper.reception, "192.0.2.7", challenge());
  std::string begun = hello(
      root_key("another"),
      "",
      {.attempt = std::string(96, 'a'), .rank = 1, .process = std::string(96, 'b')});
  ASSERT_EQ(begun.size(), kMostHello);
  EXPECT_TRUE(conversation.take(begun.substr(0, kMostHello - 1)));
  EXPECT_EQ(conversation.room(), 1);
  EXPECT_FALSE(conversation.last_word());
  EXPECT_TRUE(conversation.take(begun.substr(kMostHello - 1)));
  EXPECT_TRUE(conversation.last_word());
  EXPECT_TRUE(conversation.stranger());
  EXPECT_FALSE(conversation.take("more"));
  EXPECT_THAT(keeper.notices, ElementsAre("192.0.2.7: it does not know the secret of this run"));
}

TEST(Conversation, HasItsRankUntilItEnds) {
  Keeper keeper;
  const Claim claim{.attempt = "1", .rank = 2, .process = "process 9"};
  const auto answer_of = [&](Conversation& conversation) {
    return Process(conversation, keeper.reception.root, claim).verdict.value();
  };
  {
    Conversation first(keeper.reception, "192.0.2.7", challenge());
    EXPECT_EQ(answer_of(first).answer, Answer::accepted);
    for (const char* const address : {"192.0.2.8", "192.0.2.9"}) {  // one that ends gives back none
      Conversation other(keeper.reception, address, challenge());
      const Verdict verdict = answer_of(other);
      EXPECT_EQ(verdict.answer, Answer::taken);
      EXPECT_EQ(verdict.text, "process 9 at 192.0.2.7");
      EXPECT_TRUE(other.last_word());
    }
  }
  Conversation next(keeper.reception, "192.0.2.8", challenge());
  EXPECT_EQ(answer_of(next).answer, Answer::accepted);
}

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// What the fuzzer begins with, and what it found: nothing is amiss any more.
TEST(Conversation, PlaysTheCorpus) {
  std::set<char> senders;
  for (const auto& file :
       fs::directory_iterator(fs::path(PARADYSE_SOURCE_DIR) / "tests/fuzz/corpus/rendezvous")) {
    SCOPED_TRACE(file.path().string());
    const std::string input = text_of(file);
    EXPECT_NO_THROW(EXPECT_TRUE(test::play(input)));
    senders.insert(input.empty() ? '?' : input.front());
  }
  EXPECT_THAT(
      std::string(senders.begin(), senders.end()), testing::StrEq("achlmrsvw"));  // each of them
}

// The inputs of the corpus get behind the greeting, where they are meant to.
TEST(Conversation, InputsAreAnswered) {
  const std::string hello = test::proven_hello(test::said_by("", "a process", 1));
  const test::Played let_in = test::played(hello, 7);
  EXPECT_FALSE(let_in.stranger);
  EXPECT_TRUE(let_in.is_open);
  EXPECT_EQ(
      let_in.answered,
      test::input_challenge() +
          verdict_bytes(test::input_key(), test::input_challenge(), hello, {}));
  Session its = session(test::input_key(), test::input_challenge(), hello);
  const test::Played asked =
      test::played(hello + its.to_rendezvous.seal(request(Command::get, {test::kThere})), 7);
  EXPECT_THAT(asked.answered, HasSubstr(test::kValue));
  const test::Played taken = test::played(test::proven_hello(test::said_by("", "x", 0)), 7);
  EXPECT_THAT(taken.answered, HasSubstr(test::kHolder));
  EXPECT_TRUE(taken.stranger);
}

}  // namespace
}  // namespace paradyse::rendezvous
