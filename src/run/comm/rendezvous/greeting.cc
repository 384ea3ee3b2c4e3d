#include "src/run/comm/rendezvous/greeting.h"

#include <algorithm>
#include <array>

namespace paradyse::rendezvous {
namespace {

constexpr std::string_view kChallengeMark = "PdyRdv1\n";
constexpr std::string_view kHelloMark = "PdyHel1\n";
static_assert(kChallengeMark.size() == kMarkBytes && kHelloMark.size() == kMarkBytes);
constexpr std::size_t kMostVerdictText = 1024;

std::string joined(std::string_view one, std::string_view two) {
  std::string text;
  put_text(text, one);
  text.append(two);
  return text;
}

// As far as it has come.
void expect_mark(std::string_view arrived, std::string_view mark) {
  const std::size_t both = std::min(arrived.size(), mark.size());
  if (arrived.substr(0, both) != mark.substr(0, both)) {
    throw Malformed("it does not use the rendezvous protocol of this version");
  }
}

// The front of what has arrived, taken off.
std::string taken(std::string& arrived, std::size_t count) {
  std::string front = arrived.substr(0, count);
  arrived.erase(0, count);
  return front;
}

// The length that stands at `place`; none while it has not come.
std::optional<std::size_t> length_at(
    std::string_view arrived, std::size_t place, std::size_t most) {
  if (arrived.size() < place + sizeof(std::uint32_t)) {
    return std::nullopt;
  }
  const auto length = BytesReader(arrived.substr(place)).number<std::uint32_t>();
  if (length > most) {
    throw Malformed("a greeting has a field that is too long");
  }
  return length;
}

}  // namespace

std::string challenge() { return std::string(kChallengeMark) + nonce(); }

std::optional<std::string> challenge_in(std::string& arrived) {
  expect_mark(arrived, kChallengeMark);
  if (arrived.size() < kChallengeBytes) {
    return std::nullopt;
  }
  return taken(arrived, kChallengeBytes);
}

std::string hello(const Key& root, std::string_view challenge, const Claim& claim) {
  std::string bytes(kHelloMark);
  bytes += nonce();
  put_text(bytes, claim.attempt.substr(0, kMostClaimText));
  put_text(bytes, claim.process.substr(0, kMostClaimText));
  put_number(bytes, static_cast<std::int32_t>(claim.rank));
  return bytes + tag(root, "hello", joined(challenge, bytes));
}

std::optional<Hello> hello_in(std::string& arrived, const Key& root, std::string_view challenge) {
  expect_mark(arrived, kHelloMark);
  std::size_t whole = kMarkBytes + kNonceBytes;
  for (int text = 0; text < 2; ++text) {
    const auto length = length_at(arrived, whole, kMostClaimText);
    if (!length) {
      return std::nullopt;
    }
    whole += sizeof(std::uint32_t) + *length;
  }
  whole += sizeof(std::int32_t);
  if (arrived.size() < whole + kTagBytes) {
    return std::nullopt;
  }
  Hello found{.bytes = taken(arrived, whole + kTagBytes), .claim = {}, .proven = false};
  BytesReader reader(found.bytes);
  reader.take(kMarkBytes + kNonceBytes);
  found.claim.attempt = reader.text();
  found.claim.process = reader.text();
  found.claim.rank = reader.number<std::int32_t>();
  const std::string_view tag_bytes = reader.take(kTagBytes);
  reader.finish();
  const std::string_view authentic = std::string_view(found.bytes).substr(0, whole);
  found.proven = is_tag(tag_bytes, root, "hello", joined(challenge, authentic));
  return found;
}

std::string verdict_bytes(
    const Key& root, std::string_view challenge, std::string_view hello, const Verdict& verdict) {
  std::string bytes;
  put_number(bytes, static_cast<std::uint8_t>(verdict.answer));
  put_text(bytes, verdict.text.substr(0, kMostVerdictText));
  if (verdict.answer == Answer::wrong_secret) {
    return bytes + std::string(kTagBytes, '\0');
  }
  return bytes + tag(root, "verdict", joined(joined(challenge, hello), bytes));
}

std::optional<Verdict> verdict_in(
    std::string& arrived, const Key& root, std::string_view challenge, std::string_view hello) {
  const auto length = length_at(arrived, 1, kMostVerdictText);
  if (!length || arrived.size() < 1 + sizeof(std::uint32_t) + *length + kTagBytes) {
    return std::nullopt;
  }
  const std::string bytes = taken(arrived, 1 + sizeof(std::uint32_t) + *length);
  const std::string tag_bytes = taken(arrived, kTagBytes);
  BytesReader reader(bytes);
  const auto answer = reader.number<std::uint8_t>();
  Verdict verdict{.answer = static_cast<Answer>(answer), .text = reader.text()};
  if (answer > static_cast<std::uint8_t>(Answer::taken)) {
    throw Malformed("a greeting has an unknown answer");
  }
  if (verdict.answer == Answer::wrong_secret) {
    verdict.text.clear();
    return verdict;
  }
  if (!is_tag(tag_bytes, root, "verdict", joined(joined(challenge, hello), bytes))) {
    throw Malformed("it does not know the secret of this run");
  }
  return verdict;
}

Session session(const Key& root, std::string_view challenge, std::string_view hello) {
  const std::string both = joined(challenge, hello);
  return {
      .to_rendezvous = Direction(derived_key(root, "to the rendezvous", both)),
      .to_process = Direction(derived_key(root, "to the process", both))};
}

}  // namespace paradyse::rendezvous
