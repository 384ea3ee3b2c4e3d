#include "src/run/comm/rendezvous/seal.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>
#include <sodium.h>

namespace paradyse::rendezvous {
namespace {

static_assert(kTagBytes == crypto_auth_hmacsha256_BYTES);

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

void start_sodium() {
  static const int started = sodium_init();
  if (started < 0) {
    throw std::runtime_error("libsodium cannot start: this system gives no random numbers");
  }
}

// `key` of any length, as HMAC takes it.
Key authenticated(std::string_view key, std::string_view label, std::string_view text) {
  start_sodium();
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, bytes_of(key), key.size());
  std::string head;
  put_text(head, label);  // with its length: no label and text are another's
  crypto_auth_hmacsha256_update(&state, bytes_of(head), head.size());
  crypto_auth_hmacsha256_update(&state, bytes_of(text), text.size());
  Key out{};
  crypto_auth_hmacsha256_final(&state, out.data());
  return out;
}

std::string_view text_of(const Key& key) {
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}

}  // namespace

Key root_key(std::string_view secret) { return authenticated(secret, "paradyse run 1", ""); }

std::string tag(const Key& key, std::string_view label, std::string_view text) {
  return std::string(text_of(authenticated(text_of(key), label, text)));
}

bool is_tag(std::string_view given, const Key& key, std::string_view label, std::string_view text) {
  const Key right = authenticated(text_of(key), label, text);
  return given.size() == right.size() &&
         sodium_memcmp(given.data(), right.data(), right.size()) == 0;
}

Key derived_key(const Key& key, std::string_view label, std::string_view text) {
  return authenticated(text_of(key), label, text);
}

std::string nonce() {
  start_sodium();
  std::string bytes(kNonceBytes, '\0');
  randombytes_buf(bytes.data(), bytes.size());
  return bytes;
}

std::string Direction::numbered(std::string_view body) const {
  std::string text;
  text.reserve(sizeof(number_) + body.size());
  put_number(text, number_);
  text.append(body);
  return text;
}

std::string Direction::seal(std::string_view body) {
  if (body.size() > kMostBody) {
    throw Malformed(fmt::format("a message of {} bytes is too long", body.size()));
  }
  std::string message;
  message.reserve(sizeof(std::uint32_t) + body.size() + kTagBytes);
  put_text(message, body);
  message += tag(key_, "message", numbered(body));
  ++number_;
  return message;
}

std::optional<std::string> Direction::open(std::string& arrived) {
  if (arrived.size() < sizeof(std::uint32_t)) {
    return std::nullopt;
  }
  BytesReader reader(arrived);
  const auto length = reader.number<std::uint32_t>();
  if (length > kMostBody) {
    throw Malformed(fmt::format("a message claims to be {} bytes long", length));
  }
  const std::size_t whole = sizeof(std::uint32_t) + length + kTagBytes;
  if (arrived.size() < whole) {
    return std::nullopt;
  }
  std::string body(reader.take(length));
  if (!is_tag(reader.take(kTagBytes), key_, "message", numbered(body))) {
    throw Malformed("a message is not authentic: another wrote, repeated or changed it");
  }
  ++number_;
  arrived.erase(0, whole);
  return body;
}

}  // namespace paradyse::rendezvous
