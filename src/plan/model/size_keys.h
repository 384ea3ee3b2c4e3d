// Configurations of families whose keys are sizes and flags: read, written and named by one table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "src/plan/base/json_text.h"
#include "src/plan/base/sha256.h"
#include "src/plan/base/text_match.h"

namespace paradyse {

template <typename Shape>
struct SizeKey {
  const char* key = "";
  std::int64_t Shape::* value = nullptr;
  bool optional = false;  // 0: the model has nothing of its own, and files need not say so
  std::int64_t most = std::int64_t{1} << 20;
};

template <typename Shape>
struct FlagKey {
  const char* key = "";
  bool Shape::* value = nullptr;
};

// From 0, which files need not say, and below 1.
template <typename Shape>
struct ShareKey {
  const char* key = "";
  double Shape::* value = nullptr;
};

template <typename Shape>
struct SizeKeys {
  std::span<const SizeKey<Shape>> sizes;
  std::span<const FlagKey<Shape>> flags = {};
  std::span<const ShareKey<Shape>> shares = {};
};

[[noreturn]] inline void refuse_key(
    const std::string& source, const std::string& key, const std::string& why) {
  throw std::invalid_argument(source + ": " + key + ": " + why);
}

// The shape that an object says; what it leaves out is as in `shape`.  Throws std::invalid_argument
// that names `source`, the key and what would be accepted.
template <typename Shape>
Shape read_sizes(
    const nlohmann::json& config,
    const std::string& source,
    const SizeKeys<Shape>& known,
    Shape shape = {}) {
  std::vector<std::string> keys = {"model_type"};
  for (const SizeKey<Shape>& size : known.sizes) {
    keys.emplace_back(size.key);
  }
  for (const FlagKey<Shape>& flag : known.flags) {
    keys.emplace_back(flag.key);
  }
  for (const ShareKey<Shape>& share : known.shares) {
    keys.emplace_back(share.key);
  }
  for (const auto& [key, value] : config.items()) {
    if (std::ranges::find(keys, key) == keys.end()) {
      refuse_key(
          source,
          key,
          "is not known" + did_you_mean(key, keys) + "; keys are " + joined(keys, ", "));
    }
  }
  for (const FlagKey<Shape>& flag : known.flags) {
    if (const auto found = config.find(flag.key); found != config.end()) {
      if (!found->is_boolean()) {
        refuse_key(source, flag.key, "expected true or false, found " + excerpt(*found));
      }
      shape.*flag.value = found->template get<bool>();
    }
  }
  for (const ShareKey<Shape>& share : known.shares) {
    if (const auto found = config.find(share.key); found != config.end()) {
      const double value = found->is_number() ? found->template get<double>() : -1;
      if (!(value >= 0 && value < 1)) {
        refuse_key(
            source, share.key, "expected a number from 0 and below 1, found " + excerpt(*found));
      }
      shape.*share.value = value;
    }
  }
  for (const SizeKey<Shape>& size : known.sizes) {
    const auto found = config.find(size.key);
    if (found == config.end()) {
      continue;
    }
    const bool whole = found->is_number_integer();
    const std::int64_t value = whole ? found->template get<std::int64_t>() : -1;
    const std::int64_t least = size.optional ? 0 : 1;
    if (value < least || value > size.most) {
      refuse_key(
          source,
          size.key,
          "expected a whole number from " + std::to_string(least) + " to " +
              std::to_string(size.most) + ", found " + excerpt(*found));
    }
    shape.*size.value = value;
  }
  return shape;
}

// What read_sizes() reads as this shape.
template <typename Shape>
nlohmann::ordered_json write_sizes(
    const std::string& model_type, const Shape& shape, const SizeKeys<Shape>& known) {
  nlohmann::ordered_json config = {{"model_type", model_type}};
  for (const SizeKey<Shape>& size : known.sizes) {
    if (!size.optional || shape.*size.value > 0) {
      config[size.key] = shape.*size.value;
    }
  }
  for (const FlagKey<Shape>& flag : known.flags) {
    config[flag.key] = shape.*flag.value;
  }
  for (const ShareKey<Shape>& share : known.shares) {
    if (shape.*share.value > 0) {
      config[share.key] = shape.*share.value;
    }
  }
  return config;
}

// SHA-256 of the sizes; flags are in the name, and shares are of training alone.
template <typename Shape>
std::string fingerprint(const std::string& name, const Shape& shape, const SizeKeys<Shape>& known) {
  std::string text = name;
  for (const SizeKey<Shape>& size : known.sizes) {
    if (!size.optional || shape.*size.value > 0) {
      text.append("\n").append(size.key).append(" ").append(std::to_string(shape.*size.value));
    }
  }
  return sha256_hex(text);
}

}  // namespace paradyse
