// Reading a configuration key by key, with refusals that say what would be accepted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace paradyse {

// A key that may only say what this program does anyway.  Null says nothing and is accepted, but
// where true is: to transformers it is false.
struct FixedKey {
  const char* key;
  const char* accepted;  // JSON
  const char* instead;   // what another value asks for
};

// One object of a config file.  `where` names it in messages; `sizes` are what is taken where a
// size is not there.
class Keys {
 public:
  Keys(
      const nlohmann::json& object,
      std::string where,
      nlohmann::json sizes = nlohmann::json::object())
      : object_(object), where_(std::move(where)), sizes_(std::move(sizes)) {}

  [[nodiscard]] const std::string& where() const { return where_; }
  // The key's value, or nullptr when it is absent or null (transformers writes "default" so).
  [[nodiscard]] const nlohmann::json* find(const std::string& key) const;

  // Whether the key is there, null or not: to some a null is another thing than its absence.
  [[nodiscard]] bool says(const std::string& key) const { return object_.contains(key); }

  [[noreturn]] void refuse(const std::string& key, const std::string& accepted) const;
  // Throws for a key that is none of `known` and might change the mathematics: one that is on
  // (is_off()), or that is off and reads like a known one mistyped.
  void refuse_unknown(const std::vector<std::string>& known) const;
  // Throws unless the key is absent, null (of `accepted` = true not), or `accepted`, or off where
  // that is what is accepted.
  void expect(
      const std::string& key, const nlohmann::json& accepted, const std::string& instead) const;

  // A whole number from 1 to the widest size; where it is absent or null, the one of `sizes`.
  [[nodiscard]] std::int64_t size(const std::string& key) const;
  // Of `sizes`, 0 where it is none of them; whether it is taken the caller knows.
  [[nodiscard]] std::int64_t published(const std::string& key) const;
  // What size() took that was not there, in its order: "hidden_size = 4096".
  [[nodiscard]] const std::vector<std::string>& taken() const { return taken_; }
  [[nodiscard]] std::optional<std::int64_t> size_or_absent(const std::string& key) const;
  [[nodiscard]] double positive(const std::string& key, double absent) const;
  // From 0 to below 1.
  [[nodiscard]] double probability(const std::string& key, double absent) const;
  // Null is `absent`; it is refused where that is true, since to transformers null is false.
  [[nodiscard]] bool flag(const std::string& key, bool absent) const;
  // One of `accepted`; `hint` ends the message of another.
  [[nodiscard]] std::string name(
      const std::string& key,
      const std::string& absent,
      const std::vector<std::string>& accepted,
      const std::string& hint = {}) const;
  // The row of an embedding of `vocab` rows that `pad_token_id` names; -1: none.  Null says "none",
  // other than leaving the key out; a negative id counts from the end, as torch's does.
  [[nodiscard]] std::int64_t padding_id(std::int64_t absent, std::int64_t vocab) const;

 private:
  const nlohmann::json& object_;
  std::string where_;
  nlohmann::json sizes_;
  mutable std::vector<std::string> taken_;
};

// Whether a key of this name, of which nothing else is known, says nothing with this value: null,
// false, 0, empty, or "none"; a factor says nothing with 1, and 0 it is on with.
bool is_off(const std::string& key, const nlohmann::json& value);

// Whether a key of any architecture leaves the loss and its gradients as they are, whatever its
// value.
bool is_harmless(const std::string& key);

}  // namespace paradyse
