// What the first messages of a wire prove, and to whom they prove nothing.
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/run/comm/gloo/proof.h"
#include "tests/support/refusal.h"

namespace paradyse::gloo {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

// Messages between threads of this process, as a wire carries them.
class Post {
 public:
  using Place = std::tuple<int, int, std::uint32_t>;  // from, to, tag

  void put(const Place& place, std::string bytes) {
    const std::lock_guard lock(mutex_);
    messages_[place].push_back(std::move(bytes));
    changed_.notify_all();
  }
  // Whether it came in time.
  bool take(const Place& place, char* into, std::size_t bytes, milliseconds time) {
    std::unique_lock lock(mutex_);
    auto& queue = messages_[place];
    if (!changed_.wait_for(lock, time, [&] { return !queue.empty(); })) {
      return false;
    }
    EXPECT_EQ(queue.front().size(), bytes);
    queue.front().copy(into, bytes);
    queue.pop_front();
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Place, std::deque<std::string>> messages_;
};

struct Sent final : Message {
  bool wait(milliseconds /*deadline*/) override { return true; }
  void abort() override {}
};

struct Received final : Message {
  Received(Post& its_post, Post::Place its_place, char* its_data, std::size_t its_bytes)
      : post(its_post), place(std::move(its_place)), data(its_data), bytes(its_bytes) {}
  bool wait(milliseconds deadline) override {
    if (!post.take(place, data, bytes, deadline)) {
      throw std::runtime_error("past the deadline");
    }
    return true;
  }
  void abort() override {}

  Post& post;
  Post::Place place;
  char* data;
  std::size_t bytes;
};

// `reflects`: what is sent comes back, as from a stranger who has nothing else to say.
class PostWire final : public Wire {
 public:
  PostWire(Post& post, int rank, bool reflects = false)
      : post_(post), rank_(rank), reflects_(reflects) {}
  std::unique_ptr<Message> send(
      const void* data, std::int64_t bytes, int rank, std::uint32_t tag) override {
    const std::string text(static_cast<const char*>(data), static_cast<std::size_t>(bytes));
    post_.put(reflects_ ? Post::Place{rank, rank_, tag} : Post::Place{rank_, rank, tag}, text);
    return std::make_unique<Sent>();
  }
  std::unique_ptr<Message> receive(
      void* data, std::int64_t bytes, int rank, std::uint32_t tag) override {
    return std::make_unique<Received>(
        post_,
        Post::Place{rank, rank_, tag},
        static_cast<char*>(data),
        static_cast<std::size_t>(bytes));
  }

 private:
  Post& post_;
  int rank_;
  bool reflects_;
};

WireProof proof(const std::string& secret, const std::string& name = "wire/3/0") {
  return {.key = rendezvous::root_key(secret), .name = name};
}

// What each rank's prove() threw; "" where it returned.
std::vector<std::string> thrown(const std::vector<WireProof>& proofs) {
  Post post;
  std::vector<std::string> why(proofs.size());
  std::vector<std::thread> ranks;
  for (std::size_t r = 0; r < proofs.size(); ++r) {
    ranks.emplace_back([&, r] {
      PostWire wire(post, static_cast<int>(r));
      why[r] = test::refusal<std::runtime_error>([&] {
        prove(
            wire,
            static_cast<int>(r),
            static_cast<int>(proofs.size()),
            proofs[r],
            std::chrono::seconds(10));
      });
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  return why;
}

TEST(WireProof, RanksOfOneRunProveThemselves) {
  for (const std::size_t size : {1U, 2U, 5U}) {
    for (const std::string& why : thrown(std::vector(size, proof("the run's secret")))) {
      EXPECT_EQ(why, "");
    }
  }
}

TEST(WireProof, AnotherSecretOrWireIsNoRank) {
  for (const WireProof& other : {proof("another secret"), proof(""), proof("s", "wire/3/1")}) {
    const auto why = thrown({proof("s"), proof("s"), other});
    EXPECT_THAT(why[0], AllOf(HasSubstr("in the place of rank 2"), HasSubstr("secret")));
    EXPECT_THAT(why[1], HasSubstr("in the place of rank 2"));
    EXPECT_THAT(why[2], HasSubstr("in the place of rank 0, 1"));
  }
}

TEST(WireProof, OnesOwnWordsProveNothing) {
  Post post;
  PostWire mirror(post, 0, /*reflects=*/true);
  EXPECT_THAT(
      test::refusal<std::runtime_error>(
          [&] { prove(mirror, 0, 2, proof("the run's secret"), std::chrono::seconds(10)); }),
      HasSubstr("in the place of rank 1"));
}

TEST(WireProof, ASilentStrangerHasADeadline) {
  Post post;
  PostWire wire(post, 0);
  EXPECT_THROW(prove(wire, 0, 2, proof("the run's secret"), milliseconds(50)), std::runtime_error);
}

}  // namespace
}  // namespace paradyse::gloo
