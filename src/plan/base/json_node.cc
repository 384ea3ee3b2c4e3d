#include "src/plan/base/json_node.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <stdexcept>
#include <string_view>

#include <fmt/format.h>

#include "src/plan/base/json_text.h"
#include "src/plan/base/plan_path.h"
#include "src/plan/base/text_match.h"

namespace paradyse {

namespace {

// Follows the parser: refuses what the parser would let pass, a key that stands twice (the last one
// would win) and nesting that no file of ours has.
class Guard {
 public:
  explicit Guard(const JsonSource& source) : source_(&source) {}

  // Of what is read next.
  [[nodiscard]] std::string path() const {
    std::string path;
    for (const Open& open : open_) {
      path = open.array ? path_to(path, open.index) : path_to(path, open.key);
    }
    return path.empty() ? source_->whole : path;
  }

  bool operator()(int depth, nlohmann::json::parse_event_t event, const nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    switch (event) {
      case Event::object_start:
      case Event::array_start:
        if (depth >= kDeepestJson) {
          throw std::invalid_argument(
              source_->name + ": " + path() + ": nested deeper than " +
              std::to_string(kDeepestJson) + " levels; such files have at most 8");
        }
        open_.push_back({.array = event == Event::array_start, .key = {}, .keys = {}});
        break;
      case Event::key: {
        const std::string key = parsed.get<std::string>();
        open_.back().key = key;
        if (!open_.back().keys.insert(key).second) {
          throw std::invalid_argument(
              source_->name + ": " + path() + ": the key appears twice in this object; keep one");
        }
        break;
      }
      case Event::object_end:
      case Event::array_end:
        open_.pop_back();
        [[fallthrough]];
      case Event::value:
        if (!open_.empty()) {
          ++open_.back().index;
        }
        break;
    }
    return true;
  }

 private:
  struct Open {
    bool array = false;
    std::size_t index = 0;
    std::string key;
    std::set<std::string> keys;
  };

  const JsonSource* source_;
  std::vector<Open> open_;
};

// With null for numbers that JSON has no word for, and that some programs write all the same: so
// what is refused is refused by its path.
std::string without_nan(const std::string& text) {
  std::string result;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t word = 0;
    for (const std::string_view name : {"NaN", "-Infinity", "Infinity"}) {
      if (!quoted && word == 0 && text.compare(i, name.size(), name) == 0) {
        word = name.size();
      }
    }
    const bool escape = quoted && text[i] == '\\';
    quoted = quoted != (text[i] == '"');
    result += word > 0 ? "null" : text.substr(i, escape ? 2 : 1);
    i += word > 0 ? word : escape ? 2 : 1;
  }
  return result;
}

}  // namespace

nlohmann::json parse_json(const std::string& text, const JsonSource& source) {
  Guard guard(source);
  try {
    no_nul(text);
    return nlohmann::json::parse(without_nan(text), std::ref(guard));
  } catch (const nlohmann::json::out_of_range& error) {
    const std::string_view what = error.what();  // ends in the number, in quotes
    const std::size_t begin = std::min(what.size(), what.find('\'') + 1);
    throw std::invalid_argument(
        source.name + ": " + guard.path() + ": " +
        excerpt(std::string(what.substr(begin, what.rfind('\'') - begin))) +
        " is larger than a number can be; correct it");
  } catch (const nlohmann::json::exception& error) {
    throw std::invalid_argument(source.name + ": not JSON: " + error.what());
  }
}

void JsonNode::fail(const std::string& what) const {
  throw std::invalid_argument(
      source_->name + ": " + (path_.empty() ? source_->whole : path_) + ": " + what);
}

void JsonNode::allow(const std::vector<std::string>& keys) const {
  for (const auto& [key, value] : object().items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      child(key, value)
          .fail("unknown key" + did_you_mean(key, keys) + "; known here: " + joined(keys, ", "));
    }
  }
}

JsonNode JsonNode::at(const std::string& key) const {
  if (!has(key)) {
    fail("the key '" + key + "' is missing");
  }
  return child(key, json_->at(key));
}

std::vector<std::pair<std::string, JsonNode>> JsonNode::members() const {
  std::vector<std::pair<std::string, JsonNode>> members;
  for (const auto& [key, value] : object().items()) {
    members.emplace_back(key, child(key, value));
  }
  return members;
}

std::vector<JsonNode> JsonNode::elements() const {
  if (!json_->is_array()) {
    expected("a list");
  }
  std::vector<JsonNode> elements;
  elements.reserve(json_->size());
  for (std::size_t i = 0; i < json_->size(); ++i) {
    elements.push_back(JsonNode((*json_)[i], path_to(path_, i), *source_));
  }
  return elements;
}

std::string JsonNode::text() const {
  if (!json_->is_string()) {
    expected("a string");
  }
  return json_->get<std::string>();
}

double JsonNode::number() const {
  if (!json_->is_number()) {
    expected("a number");
  }
  return json_->get<double>();
}

double JsonNode::number_from_0() const { return number(0, kMostNumber); }

double JsonNode::number(double low, double high) const {
  const bool fits =
      json_->is_number() && json_->get<double>() >= low && json_->get<double>() <= high;
  if (!fits) {
    expected(fmt::format("a number from {} to {}", low, high));
  }
  return json_->get<double>();
}

bool JsonNode::truth() const {
  if (!json_->is_boolean()) {
    expected("true or false");
  }
  return json_->get<bool>();
}

std::vector<double> JsonNode::numbers() const {
  std::vector<double> values;
  for (const JsonNode& node : elements()) {
    values.push_back(node.number());
  }
  return values;
}

std::vector<double> JsonNode::numbers(double low, double high) const {
  std::vector<double> values;
  for (const JsonNode& node : elements()) {
    values.push_back(node.number(low, high));
  }
  return values;
}

JsonNode JsonNode::child(const std::string& key, const nlohmann::json& value) const {
  return {value, path_to(path_, key), *source_};
}

const nlohmann::json& JsonNode::object() const {
  if (!json_->is_object()) {
    expected("an object");
  }
  return *json_;
}

void JsonNode::expected(const std::string& what) const {
  constexpr std::size_t kShown = 60;
  std::string found = json_->is_object()  ? "an object"
                      : json_->is_array() ? "a list"
                      : json_->is_null()  ? "null (or NaN)"
                                          : json_->dump(-1, ' ', /*ensure_ascii=*/true);
  if (found.size() > kShown) {
    found = found.substr(0, kShown) + "...";
  }
  fail("expected " + what + ", found " + found);
}

void expect_format(
    const JsonNode& root,
    const std::string& format,
    std::int64_t version,
    const std::string& otherwise,
    const std::string& again) {
  const std::string found = root.at("format").text();
  if (found != format) {
    root.at("format").fail("expected \"" + format + "\", found \"" + found + "\": " + otherwise);
  }
  const auto its = root.at("version").integer<std::int64_t>();
  if (its != version) {
    root.at("version").fail(
        "this program reads version " + std::to_string(version) + ", the file has " +
        std::to_string(its) + ": " + again + ", or use the program that wrote it");
  }
}

}  // namespace paradyse
