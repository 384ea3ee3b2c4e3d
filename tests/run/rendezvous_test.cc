// The rendezvous of a run as a stranger meets it: nothing is read, written or ended without the
// run's secret, whatever is sent, and how slowly.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/run/comm/rendezvous/address.h"
#include "src/run/comm/rendezvous/client.h"
#include "src/run/comm/rendezvous/greeting.h"
#include "src/run/comm/rendezvous/launchers.h"
#include "src/run/comm/rendezvous/printable.h"
#include "src/run/comm/rendezvous/requests.h"
#include "src/run/comm/rendezvous/secret.h"
#include "src/run/comm/rendezvous/server.h"
#include "tests/support/refusal.h"

namespace paradyse::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Clock = std::chrono::steady_clock;

const std::string kSecret = "a secret of this test's own run";

// --- messages ------------------------------------------------------------------------------------

// Both ends of a connection that was accepted, as each made its keys.
std::pair<Session, Session> two_ends(const std::string& secret = kSecret) {
  const Key root = root_key(secret);
  const std::string asked = challenge();
  const std::string said = hello(root, asked, {.attempt = "", .rank = 1, .process = "a process"});
  return {session(root, asked, said), session(root, asked, said)};
}

TEST(Seal, OpensWhatTheOtherEndSealedInOrder) {
  auto [process, keeper] = two_ends();
  std::string arrived;
  for (const std::string& body : {std::string("one"), std::string(), std::string(100000, '\0')}) {
    arrived += process.to_rendezvous.seal(body);
  }
  EXPECT_EQ(keeper.to_rendezvous.open(arrived), "one");
  EXPECT_EQ(keeper.to_rendezvous.open(arrived), "");
  EXPECT_EQ(keeper.to_rendezvous.open(arrived), std::string(100000, '\0'));
  EXPECT_EQ(keeper.to_rendezvous.open(arrived), std::nullopt);
  EXPECT_TRUE(arrived.empty());
}

TEST(Seal, RefusesRepeatedReorderedReflectedAndOthers) {
  {
    auto [process, keeper] = two_ends();
    const std::string message = process.to_rendezvous.seal("set failed");
    std::string arrived = message;
    EXPECT_TRUE(keeper.to_rendezvous.open(arrived));
    arrived = message;  // once more
    EXPECT_THROW(keeper.to_rendezvous.open(arrived), Malformed);
  }
  {
    auto [process, keeper] = two_ends();
    process.to_rendezvous.seal("left out");
    std::string arrived = process.to_rendezvous.seal("the second");
    EXPECT_THROW(keeper.to_rendezvous.open(arrived), Malformed);
  }
  {
    auto [process, keeper] = two_ends();
    std::string arrived = process.to_rendezvous.seal("to the rendezvous");
    EXPECT_THROW(process.to_process.open(arrived), Malformed);  // handed back
  }
  {
    auto [process, keeper] = two_ends();
    auto [other_process, other_keeper] = two_ends();  // of another connection
    std::string arrived = other_process.to_rendezvous.seal("of another connection");
    EXPECT_THROW(keeper.to_rendezvous.open(arrived), Malformed);
  }
}

TEST(Seal, RefusesEachChangedByteAndWaitsForEachMissingOne) {
  for (std::size_t i = 0;; ++i) {
    auto [process, keeper] = two_ends();
    const std::string message = process.to_rendezvous.seal("a message");
    if (i == message.size()) {
      break;
    }
    std::string arrived = message.substr(0, i);
    EXPECT_EQ(keeper.to_rendezvous.open(arrived), std::nullopt) << i;
    arrived = message;
    arrived[i] = static_cast<char>(arrived[i] ^ 1);
    // A length that is another may ask for more bytes; it never gives a message.
    std::optional<std::string> got;
    try {
      got = keeper.to_rendezvous.open(arrived);
    } catch (const Malformed&) {
    }
    EXPECT_EQ(got, std::nullopt) << i;
  }
}

TEST(Seal, RefusesAnEndlessMessageAtItsLength) {
  auto [process, keeper] = two_ends();
  std::string arrived = "\xff\xff\xff\xff";
  EXPECT_THROW(keeper.to_rendezvous.open(arrived), Malformed);
  EXPECT_THROW(process.to_rendezvous.seal(std::string(Direction::kMostBody + 1, 'x')), Malformed);
}

TEST(Greeting, ProvesTheSecretAndWhoClaimsWhat) {
  const Key root = root_key(kSecret);
  const Claim claim{.attempt = "2", .rank = 7, .process = "process 4711"};
  const std::string asked = challenge();
  EXPECT_NE(asked, challenge());
  std::string arrived = hello(root, asked, claim);
  EXPECT_LE(arrived.size(), kMostHello);
  const auto said = hello_in(arrived, root, asked);
  ASSERT_TRUE(said);
  EXPECT_TRUE(said->proven);
  EXPECT_EQ(said->claim, claim);
  std::string answer = verdict_bytes(root, asked, said->bytes, {});
  EXPECT_EQ(verdict_in(answer, root, asked, said->bytes)->answer, Answer::accepted);

  for (const std::string& other : {std::string(), kSecret + "!", std::string("another secret")}) {
    std::string wrong = hello(root_key(other), asked, claim);
    EXPECT_FALSE(hello_in(wrong, root, asked)->proven) << other;
    std::string false_answer = verdict_bytes(root_key(other), asked, said->bytes, {});
    EXPECT_THROW(verdict_in(false_answer, root, asked, said->bytes), Malformed) << other;
  }
  // The answer to another hello, or another challenge; and a hello to another challenge.
  const std::string again = hello(root, asked, claim);
  std::string replayed = verdict_bytes(root, asked, said->bytes, {});
  EXPECT_THROW(verdict_in(replayed, root, asked, again), Malformed);
  std::string old = again;
  EXPECT_FALSE(hello_in(old, root, challenge())->proven);
}

TEST(Greeting, NeitherCutNorChangedBytesProveAnything) {
  const Key root = root_key(kSecret);
  const std::string asked = challenge();
  const std::string said =
      hello(root, asked, {.attempt = "1", .rank = 3, .process = std::string(200, 'p')});
  const std::string told = verdict_bytes(root, asked, said, {.answer = Answer::taken, .text = "x"});
  for (std::size_t i = 0; i < said.size(); ++i) {
    std::string cut = said.substr(0, i);
    EXPECT_EQ(hello_in(cut, root, asked).has_value(), false) << i;
    std::string changed = said;
    changed[i] = static_cast<char>(changed[i] ^ 0x41);
    bool proven = false;
    try {
      const auto read = hello_in(changed, root, asked);
      proven = read && read->proven;
    } catch (const Malformed&) {
    }
    EXPECT_FALSE(proven) << i;
  }
  for (std::size_t i = 0; i < told.size(); ++i) {
    std::string changed = told;
    changed[i] = static_cast<char>(changed[i] ^ 0x41);
    bool accepted = false;
    try {
      const auto read = verdict_in(changed, root, asked, said);
      accepted = read && read->answer != Answer::wrong_secret;
    } catch (const Malformed&) {
    }
    EXPECT_FALSE(accepted) << i;
  }
}

TEST(Requests, RandomBytesAreAnsweredOrRefused) {
  std::mt19937 random(1);
  Table table;
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes(random() % 40, '\0');
    for (char& byte : bytes) {
      // Small numbers, so that counts and lengths are often right.
      byte = static_cast<char>(random() % 4 == 0 ? random() % 256 : random() % 5);
    }
    try {
      answer_to(bytes, table);
    } catch (const Malformed&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 10000);
  EXPECT_THROW(answer_to(request(Command::set, {"a"}), table), Malformed);
  EXPECT_THROW(answer_to(request(static_cast<Command>(9), {}), table), Malformed);
  EXPECT_EQ(
      test::refusal<std::exception>(
          [&] { values_in(answer_to(request(Command::get_all, {"no such"}), table)); }),
      "the rendezvous has no key no such");
}

TEST(Printable, LeavesNothingThatMovesACursor) {
  EXPECT_EQ(printable("rank 3: Größe \xe2\x89\xa4 7"), "rank 3: Größe \xe2\x89\xa4 7");
  EXPECT_EQ(printable("\x1b[2J\r\x07\x7f"), "\\x1b[2J\\x0d\\x07\\x7f");
  EXPECT_EQ(printable("one\nparadyse: error: two"), "one\n  paradyse: error: two");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(
      printable("\xc2\x9b"
                "31m"),
      "\\xc2\\x9b31m");  // a C1 control character
  EXPECT_EQ(
      printable("\xe2\x80\xae"
                "x"),
      "\\xe2\\x80\\xaex");                         // turns the line round
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");  // no UTF-8
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");  // overlong
  EXPECT_EQ(printable("abcdef", 3), "abc ... (3 more bytes)");
}

// --- the secret ----------------------------------------------------------------------------------

TEST(Secret, IsRandomOrOfAFileThatOthersCannotRead) {
  EXPECT_EQ(made_secret().size(), 64U);
  EXPECT_NE(made_secret(), made_secret());

  const auto folder =
      std::filesystem::temp_directory_path() / ("secret_test." + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const auto file = folder / "secret";
  const auto written = [&](const std::string& text, unsigned mode) {
    std::ofstream(file) << text;
    chmod(file.c_str(), mode);
    return test::refusal<std::exception>([&] { secret_in(file); });
  };
  EXPECT_EQ(written(" " + kSecret + " \r\n", 0600), "");
  EXPECT_EQ(secret_in(file), kSecret);
  EXPECT_EQ(written(kSecret, 0400), "");
  chmod(file.c_str(), 0600);
  for (const unsigned mode : {0640U, 0604U, 0620U, 0644U, 0666U}) {
    EXPECT_THAT(written(kSecret, mode), AllOf(HasSubstr("chmod 600"), HasSubstr(file.string())));
    chmod(file.c_str(), 0600);
  }
  EXPECT_THAT(written("short", 0600), HasSubstr("can be found by trying"));
  EXPECT_THAT(written(kSecret + std::string(1, '\0') + "x", 0600), HasSubstr("one line of text"));
  EXPECT_THAT(written(kSecret + "\n" + kSecret, 0600), HasSubstr("one line of text"));
  EXPECT_THAT(written("", 0600), HasSubstr("0 characters"));
  EXPECT_THAT(written(std::string(5000, 'x'), 0600), HasSubstr("longer than 4096 bytes"));
  EXPECT_THAT(
      test::refusal<std::exception>([&] { secret_in(folder); }), HasSubstr("no regular file"));
  EXPECT_THAT(
      test::refusal<std::exception>([&] { secret_in(folder / "none"); }),
      HasSubstr("head -c 32 /dev/urandom | base64"));
  const auto pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(
      test::refusal<std::exception>([&] { secret_in(pipe); }),
      HasSubstr("no regular file"));  // and no wait
  std::filesystem::remove_all(folder);
}

// --- the server ----------------------------------------------------------------------------------

ServerOptions served(const std::string& secret = kSecret) {
  ServerOptions options;
  options.host = "127.0.0.1";
  options.secret = secret;
  return options;
}

ClientOptions towards(const Server& server, int rank = -1, const std::string& secret = kSecret) {
  ClientOptions options;
  options.host = "127.0.0.1";
  options.port = server.port();
  options.secret = secret;
  options.claim = {.attempt = "", .rank = rank, .process = "process " + std::to_string(rank)};
  options.patience = seconds(10);
  return options;
}

// A connection that knows nothing of greetings.
class Stranger {
 public:
  explicit Stranger(int port) : socket_(connected("127.0.0.1", port, Clock::now() + seconds(10))) {}

  // Whether all bytes were taken.
  bool say(std::string_view bytes) {
    const auto end = Clock::now() + seconds(10);
    while (!bytes.empty()) {
      const ssize_t sent = send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent >= 0) {
        bytes.remove_prefix(static_cast<std::size_t>(sent));
      } else if (errno != EAGAIN || !socket_.await(POLLOUT, end)) {
        return false;
      }
    }
    return true;
  }
  // What comes until the other side hangs up; "still open" is in `open` past `time`.
  std::string hear(milliseconds time, std::size_t most = 1 << 20) {
    const auto end = Clock::now() + time;
    std::string heard;
    while (heard.size() < most) {
      std::array<char, 4096> bytes{};
      const ssize_t got =
          recv(socket_.fd(), bytes.data(), std::min(bytes.size(), most - heard.size()), 0);
      if (got > 0) {
        heard.append(bytes.data(), static_cast<std::size_t>(got));
      } else if (got == 0 || errno != EAGAIN) {
        open_ = false;
        return heard;
      } else if (!socket_.await(POLLIN, end)) {
        return heard;
      }
    }
    return heard;
  }
  [[nodiscard]] bool open() const { return open_; }

 private:
  Socket socket_;
  bool open_ = true;
};

// A member of the run still reads and writes, and finds what it wrote before.
void expect_well(const Server& server) {
  const auto store = reach_store(towards(server));
  store->set("well", "yes");
  EXPECT_EQ(store->get("well"), "yes");
  EXPECT_EQ(store->get("failed"), std::nullopt);
  EXPECT_EQ(server.store()->get("failed"), std::nullopt);
}

TEST(Server, KeepsAStoreForItsRun) {
  const Server server(served());
  const auto one = reach_store(towards(server, 0));
  const auto two = with_prefix(reach_store(towards(server, 1)), "deep");
  one->set("deep/key", std::string("a\0b", 3));
  EXPECT_EQ(two->get("key"), std::string("a\0b", 3));
  EXPECT_EQ(two->get("none"), std::nullopt);
  EXPECT_EQ(two->set_once("key", "late"), std::string("a\0b", 3));
  EXPECT_EQ(two->set_once("first", "mine"), "mine");
  EXPECT_EQ(one->get_all({"deep/first", "deep/key"}).front(), "mine");
  EXPECT_THAT(
      test::refusal<std::exception>([&] { one->get_all({"deep/first", "no such"}); }),
      HasSubstr("no key no such"));
  one->set("big", std::string(3 << 20, 'x'));  // many reads and writes
  EXPECT_EQ(server.store()->get("big")->size(), std::size_t{3 << 20});
  EXPECT_EQ(one->get("big")->size(), std::size_t{3 << 20});
  EXPECT_THROW(one->set("bigger", std::string(Direction::kMostBody, 'x')), std::runtime_error);
}

TEST(Server, AnswersManyThreadsOfManyProcesses) {
  const Server server(served());
  std::vector<std::thread> threads;
  for (int r = 0; r < 6; ++r) {
    threads.emplace_back([&, r] {
      const auto store = reach_store(towards(server, r));
      std::thread other([&] {
        for (int i = 0; i < 100; ++i) {
          store->set("other/" + std::to_string(r), std::to_string(i));
        }
      });
      for (int i = 0; i < 100; ++i) {
        store->set("one/" + std::to_string(r), std::to_string(i));
        EXPECT_EQ(store->get("one/" + std::to_string(r)), std::to_string(i));
      }
      other.join();
      EXPECT_EQ(store->get("other/" + std::to_string(r)), "99");
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(Server, TurnsAwayAWrongSecretAndNone) {
  std::mutex mutex;
  std::vector<std::string> notices;
  ServerOptions options = served();
  options.notice = [&](const std::string& what) {
    const std::lock_guard lock(mutex);
    notices.push_back(what);
  };
  {
    const Server server(options);
    EXPECT_THAT(
        test::refusal<std::exception>(
            [&] { reach_store(towards(server, 1, "another run's secret")); }),
        HasSubstr("refuses this process's secret"));
    EXPECT_THAT(
        test::refusal<std::exception>([&] { reach_store(towards(server, 1, "")); }),
        AllOf(HasSubstr("asks for the run's secret"), HasSubstr("PARADYSE_SECRET")));
    expect_well(server);
    for (int i = 0; i < 20; ++i) {  // nobody fills a log
      EXPECT_THROW(reach_store(towards(server, 1, "another run's secret")), std::runtime_error);
    }
  }
  ASSERT_FALSE(notices.empty());
  EXPECT_LE(notices.size(), 8U);
  EXPECT_THAT(
      notices.front(),
      AllOf(HasSubstr("turned away a connection from 127.0.0.1:"), HasSubstr("secret")));
  // A server with none, and a process with one: not the same run.
  const Server open(served(""));
  EXPECT_THROW(reach_store(towards(open)), std::runtime_error);
  reach_store(towards(open, 1, ""))->set("a", "b");
}

TEST(Server, TurnsAwayASecondProcessOfARankAndNamesTheFirst) {
  std::atomic<int> told = 0;
  std::string notice;
  ServerOptions options = served();
  options.notice = [&](const std::string& what) {
    notice = what;
    ++told;
  };
  options.reserved = {.attempt = "", .rank = 0, .process = "the keeper"};
  const Server server(options);
  ClientOptions first = towards(server, 2);
  first.claim.process = "process 17 on \x1b[2Jnode1";
  auto holder = reach_store(first);
  EXPECT_THAT(
      test::refusal<std::exception>([&] { reach_store(towards(server, 2)); }),
      AllOf(
          HasSubstr("rank 2 is taken: process 17 on \\x1b[2Jnode1 at 127.0.0.1:"),
          HasSubstr("SLURM_PROCID")));
  EXPECT_THAT(
      test::refusal<std::exception>([&] { reach_store(towards(server, 0)); }),
      HasSubstr("taken: the keeper"));
  ASSERT_GE(told, 1);
  EXPECT_THAT(notice, AllOf(HasSubstr("process 0 claims rank 0"), Not(HasSubstr("\x1b"))));
  holder->set("still", "there");
  ClientOptions again = towards(server, 2);
  again.claim.attempt = "1";  // a restart's ranks are others
  reach_store(again)->set("a", "b");
  holder.reset();  // it is over: another may have its rank
  const auto end = Clock::now() + seconds(10);
  while (!test::refusal<std::exception>([&] { reach_store(towards(server, 2)); }).empty()) {
    ASSERT_LT(Clock::now(), end);
  }
}

TEST(Server, SurvivesGarbage) {
  const Server server(served());
  std::mt19937 random(2);
  std::string noise(100000, '\0');
  for (char& byte : noise) {
    byte = static_cast<char>(random());
  }
  const std::string mark = hello(root_key("wrong"), challenge(), {}).substr(0, 40);
  for (const std::string& said :
       {std::string("GET / HTTP/1.1\r\n\r\n"),
        noise,
        std::string(1, '\0'),
        std::string(500, '\xff'),
        mark + std::string("\xff\xff\xff\x7f", 4),
        mark + std::string(100000, '\0')}) {
    Stranger stranger(server.port());
    stranger.say(said);
    const std::string heard = stranger.hear(seconds(1));
    // It hears a challenge and, at most, that it was refused: nothing that is made with the key.
    EXPECT_LE(heard.size(), kChallengeBytes + 1 + 4 + kTagBytes);
    expect_well(server);
  }
}

TEST(Server, ReadsNoMoreThanAGreetingOfAStranger) {
  const Server server(served());
  Stranger stranger(server.port());
  // Right so far, and then without an end.
  const std::string start = hello(root_key("wrong"), challenge(), {}).substr(0, 40);
  std::string endless = start;
  put_number(endless, static_cast<std::uint32_t>(kMostClaimText));
  endless += std::string(64 << 20, 'x');
  EXPECT_FALSE(stranger.say(endless));
  expect_well(server);
}

TEST(Server, HangsUpOnASlowSender) {
  ServerOptions options = served();
  options.greeting = milliseconds(500);
  const Server server(options);
  Stranger slow(server.port());
  Stranger silent(server.port());
  const std::string said = hello(root_key("wrong"), challenge(), {});
  const auto begin = Clock::now();
  bool open = true;
  for (std::size_t i = 0; open && i < said.size(); ++i) {
    open = slow.say(said.substr(i, 1));
    std::this_thread::sleep_for(milliseconds(20));
    if (i % 16 == 0) {
      slow.hear(milliseconds(1));
      open = open && slow.open();
    }
  }
  EXPECT_FALSE(open);
  EXPECT_LT(Clock::now() - begin, seconds(5));
  silent.hear(seconds(5));
  EXPECT_FALSE(silent.open());
  expect_well(server);
}

TEST(Server, SurvivesNineHundredIdleConnections) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit before = limit;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 4096);
  setrlimit(RLIMIT_NOFILE, &limit);
  {
    const Server server(served());
    const auto member = reach_store(towards(server, 1));
    std::vector<std::unique_ptr<Stranger>> idle;
    for (int i = 0; i < 900; ++i) {
      idle.push_back(std::make_unique<Stranger>(server.port()));
    }
    member->set("a", "b");
    EXPECT_EQ(member->get("a"), "b");
    expect_well(server);
    EXPECT_EQ(idle.front()->hear(seconds(5)).size(), kChallengeBytes);
    EXPECT_FALSE(idle.front()->open());  // the first had to go
  }
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST(Server, SurvivesWithoutFileDescriptors) {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  {
    const Server server(served());
    const auto member = reach_store(towards(server, 1));
    const int next = dup(0);
    close(next);
    rlimit few = before;
    few.rlim_cur = static_cast<rlim_t>(next) + 30;  // both ends of 15 connections
    setrlimit(RLIMIT_NOFILE, &few);
    std::vector<std::unique_ptr<Stranger>> idle;
    std::string no_room;
    while (no_room.empty()) {  // strangers have to go, until this side alone has all there are
      no_room = test::refusal<std::exception>(
          [&] { idle.push_back(std::make_unique<Stranger>(server.port())); });
      ASSERT_LT(idle.size(), 100U);
    }
    EXPECT_THAT(no_room, HasSubstr("Too many open files"));
    EXPECT_GE(idle.size(), 14U);  // both ends took all there are
    member->set("a", "b");
    EXPECT_EQ(member->get("a"), "b");
    idle.clear();
    expect_well(server);
    setrlimit(RLIMIT_NOFILE, &before);
  }
}

// What a member's connection carried, played again by one who listened.
TEST(Server, TakesNoRecordedConnection) {
  const Server server(served());
  const Key root = root_key(kSecret);
  Stranger member(server.port());
  std::string heard = member.hear(seconds(5), kChallengeBytes);
  const std::string asked = *challenge_in(heard);
  std::string said = hello(root, asked, {.attempt = "", .rank = 1, .process = "the member"});
  Session mine = session(root, asked, said);
  said += mine.to_rendezvous.seal(request(Command::set, {"recorded", "once"}));
  ASSERT_TRUE(member.say(said));
  EXPECT_GT(member.hear(seconds(1)).size(), kTagBytes);
  EXPECT_EQ(server.store()->get("recorded"), "once");
  server.store()->set("recorded", "since changed");
  for (int i = 0; i < 3; ++i) {
    Stranger thief(server.port());
    thief.say(said);
    thief.hear(seconds(5));
    EXPECT_FALSE(thief.open());
    EXPECT_EQ(server.store()->get("recorded"), "since changed");
  }
  // On the member's own connection, too, where the same bytes come twice.
  const std::string once = mine.to_rendezvous.seal(request(Command::set, {"recorded", "now"}));
  member.say(once + once);
  member.hear(seconds(5));
  EXPECT_FALSE(member.open());
  EXPECT_EQ(server.store()->get("recorded"), "now");
  expect_well(server);
}

TEST(Server, ListensAtItsAddressAlone) {
  const Server server(served());
  EXPECT_EQ(server.address(), "127.0.0.1");
  EXPECT_THROW(connected("127.0.0.2", server.port(), Clock::now() + seconds(2)), Unreached);
  for (const char* const all : {"0.0.0.0", "::", "::ffff:0.0.0.0"}) {
    ServerOptions options = served();
    options.host = all;
    EXPECT_THAT(
        test::refusal<std::exception>([&] { const Server other(options); }),
        HasSubstr("all interfaces"));
  }
  ServerOptions taken = served();
  taken.port = server.port();
  EXPECT_THAT(
      test::refusal<std::exception>([&] { const Server other(taken); }), HasSubstr("in use"));
}

// Whatever address of its name another machine knows.
TEST(Server, ListensAtEachAddressOfAName) {
  ServerOptions options = served("");
  options.host = "localhost";
  const Server server(options);
  const std::vector<Listener> all = Listener::at_all("localhost", 0, /*loopback_alone=*/true);
  ASSERT_FALSE(all.empty());
  for (const Listener& one : all) {
    EXPECT_TRUE(one.loopback());
    EXPECT_EQ(one.port(), all.front().port());
    EXPECT_NO_THROW(connected(one.address(), server.port(), Clock::now() + seconds(2)));
  }
}

TEST(Server, TakesNoSecretOnLoopbackAlone) {
  // Documentation addresses are nobody's, so this is refused before anything is sent.
  ClientOptions client;
  client.host = "192.0.2.1";
  client.port = 29500;
  EXPECT_THAT(
      test::refusal<std::exception>([&] { reach_store(client); }),
      AllOf(
          HasSubstr("PARADYSE_SECRET"), HasSubstr("--secret-file"), HasSubstr("192.0.2.1:29500")));
  EXPECT_TRUE(is_loopback("127.0.0.1"));
  EXPECT_TRUE(is_loopback("127.3.2.1"));
  EXPECT_TRUE(is_loopback("::1"));
  EXPECT_FALSE(is_loopback("10.0.0.1"));
  std::string mine;
  try {
    mine = address_towards("192.0.2.1", 1);
  } catch (const std::invalid_argument& error) {
    GTEST_SKIP() << "this machine has no address but loopback: " << error.what();
  }
  ServerOptions options = served("");
  options.host = mine;
  EXPECT_THAT(
      test::refusal<std::exception>([&] { const Server open(options); }),
      HasSubstr("PARADYSE_SECRET"));
  options.secret = kSecret;
  const Server server(options);
  EXPECT_EQ(server.address(), mine);
}

// --- the client ----------------------------------------------------------------------------------

// A program at an address of its own that says `said` to all who come, or nothing.
class Impostor {
 public:
  explicit Impostor(std::string said) : said_(std::move(said)), listener_("127.0.0.1") {
    thread_ = std::thread([this] {
      while (!stop_) {
        pollfd wait{.fd = listener_.fd(), .events = POLLIN, .revents = 0};
        if (poll(&wait, 1, 20) <= 0) {
          continue;
        }
        const int fd = listener_.accept().first;
        if (fd >= 0) {
          EXPECT_EQ(send(fd, said_.data(), said_.size(), MSG_NOSIGNAL), std::ssize(said_));
          fds_.push_back(fd);
        }
      }
    });
  }
  ~Impostor() {
    stop_ = true;
    thread_.join();
    for (const int fd : fds_) {
      close(fd);
    }
  }
  Impostor(const Impostor&) = delete;
  Impostor& operator=(const Impostor&) = delete;

  [[nodiscard]] ClientOptions options() const {
    ClientOptions options;
    options.host = "127.0.0.1";
    options.port = listener_.port();
    options.secret = kSecret;
    options.patience = seconds(1);
    return options;
  }

 private:
  std::string said_;
  Listener listener_;
  std::atomic<bool> stop_ = false;
  std::vector<int> fds_;
  std::thread thread_;
};

TEST(Client, TakesNoOtherForItsRendezvous) {
  const auto said_of = [](const std::string& said) {
    const Impostor impostor(said);
    const auto begin = Clock::now();
    const std::string why = test::refusal<std::exception>([&] { reach_store(impostor.options()); });
    EXPECT_LT(Clock::now() - begin, seconds(8));
    return why;
  };
  EXPECT_THAT(said_of(""), HasSubstr("does not answer"));
  EXPECT_THAT(said_of("SSH-2.0-OpenSSH_9.2"), HasSubstr("does not use the rendezvous protocol"));
  EXPECT_THAT(said_of(challenge().substr(0, 20)), HasSubstr("does not answer"));
  // It lets everybody in, without the secret.
  std::string open_door = challenge();
  put_number(open_door, static_cast<std::uint8_t>(Answer::accepted));
  put_text(open_door, "");
  EXPECT_THAT(
      said_of(open_door + std::string(kTagBytes, '\0')),
      HasSubstr("does not know the secret of this run"));
  std::string endless = challenge();
  put_number(endless, static_cast<std::uint8_t>(Answer::taken));
  put_number(endless, 0x7fffffffU);
  EXPECT_THAT(said_of(endless), HasSubstr("too long"));
}

TEST(Client, WaitsForARendezvousThatStartsLate) {
  int port = 0;
  {
    const Listener free("127.0.0.1");
    port = free.port();
  }
  std::unique_ptr<Server> server;
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(700));
    ServerOptions options = served();
    options.port = port;
    server = std::make_unique<Server>(options);
  });
  ClientOptions options;
  options.host = "127.0.0.1";
  options.port = port;
  options.secret = kSecret;
  EXPECT_NO_THROW(reach_store(options));
  late.join();
  server.reset();
  options.patience = milliseconds(300);
  EXPECT_THAT(
      test::refusal<std::exception>([&] { reach_store(options); }),
      HasSubstr("Connection refused"));
}

TEST(Client, GivesUpOnARendezvousThatStopsToAnswer) {
  auto server = std::make_unique<Server>(served());
  const auto store = reach_store(towards(*server));
  server.reset();
  EXPECT_THROW(store->get("a"), std::runtime_error);
  EXPECT_THAT(
      test::refusal<std::exception>([&] { store->get("a"); }), HasSubstr("lost"));  // at once
}

// A peer that went without a word is noticed, whether or not something is on its way to it.
TEST(Listener, NoticesAPeerThatIsGone) {
  const Listener listener("127.0.0.1");
  Listener::keep_alive(listener.fd());
  for (const auto& [level, option, least] :
       {std::array{int{SOL_SOCKET}, int{SO_KEEPALIVE}, 1},
        std::array{int{IPPROTO_TCP}, int{TCP_USER_TIMEOUT}, 60000}}) {
    int value = 0;
    socklen_t size = sizeof(value);
    ASSERT_EQ(getsockopt(listener.fd(), level, option, &value, &size), 0);
    EXPECT_GE(value, least) << option;
    EXPECT_LE(value, 300000) << option;
  }
}

// What each of the nodes that come, a bit apart, goes on with.
std::vector<std::vector<int>> agreed_by(
    const std::vector<int>& before, const std::vector<int>& come, milliseconds patience) {
  Table store;
  std::vector<std::vector<int>> found(come.size());
  std::vector<std::thread> launchers;
  for (std::size_t i = 0; i < come.size(); ++i) {
    launchers.emplace_back([&, i] {
      std::this_thread::sleep_for(milliseconds(20 * i));
      found[i] = nodes_that_go_on(
                     store,
                     {.attempt = 3, .node = come[i], .before = before, .patience = patience},
                     [] { return false; })
                     .value();
    });
  }
  for (std::thread& launcher : launchers) {
    launcher.join();
  }
  return found;
}

TEST(Launchers, GoOnWithThoseThatCome) {
  using Nodes = std::vector<int>;
  for (const Nodes& come : {Nodes{0, 1, 4}, Nodes{4, 1, 0}, Nodes{1, 0, 4}}) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THAT(
        agreed_by({0, 1, 4}, come, std::chrono::seconds(60)), testing::Each(Nodes{0, 1, 4}));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  }
  EXPECT_THAT(agreed_by({0, 1, 4}, {4, 0}, milliseconds(300)), testing::Each(Nodes{0, 4}));
  EXPECT_THAT(agreed_by({0, 1, 4}, {0}, milliseconds(100)), testing::Each(Nodes{0}));
}

TEST(Launchers, EndInTime) {
  const auto never = [] { return false; };
  const LauncherMeeting meeting{
      .attempt = 1, .node = 2, .before = {0, 2}, .patience = milliseconds(100)};
  Table store;
  EXPECT_THROW(nodes_that_go_on(store, meeting, never), std::runtime_error);  // node 0 is gone
  EXPECT_EQ(nodes_that_go_on(store, meeting, [] { return true; }), std::nullopt);
  store.set("launchers/1", "0");  // they went on without it
  EXPECT_THAT(nodes_that_go_on(store, meeting, never).value(), testing::ElementsAre(0));
  for (const char* const made_up :
       {"2 0", "0 1", "0,2", "0 -2", "0 99999999999999999999", "\x1b[2J", "0 2 2", " 0"}) {
    store.set("launchers/1", made_up);
    EXPECT_THAT(
        test::refusal<std::runtime_error>([&] { nodes_that_go_on(store, meeting, never); }),
        AllOf(HasSubstr("another program"), testing::Not(HasSubstr("\x1b"))));
  }
}

}  // namespace
}  // namespace paradyse::rendezvous
