#include "src/run/comm/gloo/proof.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/detail/index.h"

namespace paradyse::gloo {
namespace {

using std::chrono::milliseconds;

// Below those of operations, which are hashes; of this wire's start alone.
constexpr std::uint32_t kNonceTag = 1;
constexpr std::uint32_t kProofTag = 2;

struct Other {
  int rank = 0;
  std::string sent;      // my nonce, then my tag
  std::string received;  // its
  std::unique_ptr<Message> out;
  std::unique_ptr<Message> in;
};

// What rank `from` proves to rank `to`, in answer to the nonce that `to` sent.
std::string proven(
    const WireProof& proof,
    int from,
    int to,
    std::string_view nonce_of_to,
    std::string_view nonce_of_from) {
  std::string text;
  rendezvous::put_text(text, proof.name);
  rendezvous::put_number(text, static_cast<std::int32_t>(from));
  rendezvous::put_number(text, static_cast<std::int32_t>(to));
  rendezvous::put_text(text, nonce_of_to);
  rendezvous::put_text(text, nonce_of_from);
  return text;
}

}  // namespace

void prove(Wire& wire, int rank, int size, const WireProof& proof, milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  std::vector<Other> others(idx(size - 1));
  const auto exchange = [&](std::size_t bytes, std::uint32_t tag) {
    for (Other& other : others) {
      other.received.assign(bytes, '\0');
      other.in = wire.receive(other.received.data(), std::ssize(other.received), other.rank, tag);
      other.out = wire.send(other.sent.data(), std::ssize(other.sent), other.rank, tag);
    }
    for (Other& other : others) {
      for (Message* const message : {other.in.get(), other.out.get()}) {
        const auto left = std::chrono::ceil<milliseconds>(end - std::chrono::steady_clock::now());
        if (!message->wait(std::max(left, milliseconds(1)))) {
          throw std::runtime_error(
              fmt::format("rank {} did not prove that it knows the run's secret", other.rank));
        }
      }
    }
  };
  for (int i = 0; i < size - 1; ++i) {
    others[idx(i)].rank = (rank + 1 + i) % size;
    others[idx(i)].sent = rendezvous::nonce();
  }
  exchange(rendezvous::kNonceBytes, kNonceTag);
  std::vector<std::string> expected;
  expected.reserve(others.size());
  for (Other& other : others) {
    expected.push_back(proven(proof, other.rank, rank, other.sent, other.received));
    other.sent = rendezvous::tag(
        proof.key, "wire", proven(proof, rank, other.rank, other.received, other.sent));
  }
  exchange(rendezvous::kTagBytes, kProofTag);
  std::vector<int> strangers;
  for (std::size_t i = 0; i < others.size(); ++i) {
    if (!rendezvous::is_tag(others[i].received, proof.key, "wire", expected[i])) {
      strangers.push_back(others[i].rank);
    }
  }
  if (!strangers.empty()) {
    throw std::runtime_error(fmt::format(
        "another program connected in the place of rank {} and does not know the run's secret",
        fmt::join(strangers, ", ")));
  }
}

}  // namespace paradyse::gloo
