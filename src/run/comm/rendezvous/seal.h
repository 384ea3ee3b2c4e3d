// Messages that only who knows a key can have made: HMAC-SHA256, by libsodium.
//
// A *root key* is made of a run's secret; each connection has a key for each direction, made of the
// root key and of what both ends chose for this connection, so that no message of another
// connection, or of the other direction, is taken for one of this.  A message's number in its
// direction is part of what is authenticated: none can be left out, repeated or moved.
//
// Nothing is encrypted.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/run/comm/rendezvous/bytes.h"

namespace paradyse::rendezvous {

using Key = std::array<unsigned char, 32>;
inline constexpr std::size_t kTagBytes = 32;
inline constexpr std::size_t kNonceBytes = 32;

// "" has a key, too, which everybody knows.
Key root_key(std::string_view secret);

// Of the text, for what `label` says.
std::string tag(const Key& key, std::string_view label, std::string_view text);
// Takes as long wherever the two differ.
bool is_tag(std::string_view given, const Key& key, std::string_view label, std::string_view text);
Key derived_key(const Key& key, std::string_view label, std::string_view text);

// Random bytes that were never there before.
std::string nonce();

// One direction of one connection: at one end it seals, at the other it opens.
class Direction {
 public:
  // Bodies are no longer than this.
  static constexpr std::uint32_t kMostBody = 16U << 20U;

  explicit Direction(const Key& key) : key_(key) {}

  // The body as it is sent: its length, itself, its tag.  Throws Malformed for one too long.
  std::string seal(std::string_view body);
  // Takes the next message off the front of what has arrived; none while it is incomplete.  Throws
  // Malformed where it is none that the other end sealed at this place.
  std::optional<std::string> open(std::string& arrived);

 private:
  [[nodiscard]] std::string numbered(std::string_view body) const;

  Key key_;
  std::uint64_t number_ = 0;
};

}  // namespace paradyse::rendezvous
