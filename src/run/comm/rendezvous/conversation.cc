#include "src/run/comm/rendezvous/conversation.h"

#include <algorithm>

#include <fmt/format.h>

#include "src/run/comm/rendezvous/printable.h"
#include "src/run/comm/rendezvous/requests.h"

namespace paradyse::rendezvous {
namespace {

constexpr std::size_t kAtATime = 1 << 16;  // bytes

}  // namespace

Conversation::Conversation(Reception& reception, std::string address, std::string challenge)
    : reception_(reception),
      address_(std::move(address)),
      challenge_(std::move(challenge)),
      leaving_(challenge_) {}

Conversation::~Conversation() {
  if (claim_) {
    reception_.holders.erase({claim_->attempt, claim_->rank});
  }
}

std::size_t Conversation::room() const {
  return stranger() ? kMostHello - std::min(kMostHello, arrived_.size()) : kAtATime;
}

bool Conversation::take(std::string_view bytes) {
  if (last_word_) {
    return false;
  }
  arrived_.append(bytes);
  try {
    if (stranger()) {
      greet();
    }
    if (!stranger()) {
      while (const auto asked = session_->to_rendezvous.open(arrived_)) {
        leaving_ += session_->to_process.seal(answer_to(*asked, *reception_.store));
      }
    }
  } catch (const Malformed& error) {
    if (!stranger() && reception_.notice) {
      reception_.notice(address_, error.what());
    }
    return false;
  }
  return true;
}

void Conversation::greet() {
  const auto hello = hello_in(arrived_, reception_.root, challenge_);
  if (!hello) {
    return;
  }
  Verdict verdict;
  std::string why;
  if (!hello->proven) {
    verdict.answer = Answer::wrong_secret;
    why = "it does not know the secret of this run";
  } else if (const std::string holder = holder_of(hello->claim); !holder.empty()) {
    verdict = {.answer = Answer::taken, .text = holder};
    why = fmt::format(
        "{} claims rank {}, which {} has",
        printable(hello->claim.process),
        hello->claim.rank,
        printable(holder));
  }
  leaving_ += verdict_bytes(reception_.root, challenge_, hello->bytes, verdict);
  if (verdict.answer == Answer::accepted) {
    session_ = session(reception_.root, challenge_, hello->bytes);
    return;
  }
  last_word_ = true;
  if (reception_.notice) {
    reception_.notice(address_, why);
  }
}

// Gives the rank to this conversation, or who has it.
std::string Conversation::holder_of(const Claim& claim) {
  if (claim.rank < 0) {
    return "";
  }
  const auto [place, is_new] = reception_.holders.try_emplace(
      {claim.attempt, claim.rank}, fmt::format("{} at {}", claim.process, address_));
  if (is_new) {
    claim_ = claim;
    return "";
  }
  return place->second;
}

}  // namespace paradyse::rendezvous
