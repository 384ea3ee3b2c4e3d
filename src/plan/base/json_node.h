// Reading JSON that people and other programs write: each value knows where it stands, so that what
// is refused is refused by file and path.
#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace paradyse {

// What messages call the text and its outermost value: "plan.json", "the plan".
struct JsonSource {
  std::string name;
  std::string whole;
};

// More than any time, rate or amount of a machine, so that no sum or product of a few of them
// overflows.
inline constexpr double kMostNumber = 1e30;

// Throws std::invalid_argument naming the source for a text that is no JSON, and the path, too,
// where a key stands twice in one object (the last one would win), it nests deeper than 64, or a
// number is larger than a double.
nlohmann::json parse_json(const std::string& text, const JsonSource& source);

// A JSON value and where it stands.  Refers to both the value and the source.  All that reads
// throws std::invalid_argument naming source and path, what was expected and what was found.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& json, const JsonSource& source) : JsonNode(json, "", source) {}

  [[noreturn]] void fail(const std::string& what) const;

  // Throws unless this is an object whose keys are all among these.
  void allow(const std::vector<std::string>& keys) const;

  [[nodiscard]] bool has(const std::string& key) const { return object().contains(key); }
  [[nodiscard]] bool is_null(const std::string& key) const { return at(key).json_->is_null(); }
  [[nodiscard]] JsonNode at(const std::string& key) const;
  [[nodiscard]] std::vector<std::pair<std::string, JsonNode>> members() const;
  [[nodiscard]] std::vector<JsonNode> elements() const;

  [[nodiscard]] std::string text() const;
  [[nodiscard]] double number() const;
  [[nodiscard]] double number_from_0() const;  // to kMostNumber
  [[nodiscard]] double number(double low, double high) const;
  [[nodiscard]] bool truth() const;

  template <typename Integer>
  [[nodiscard]] Integer integer(Integer least = std::numeric_limits<Integer>::min()) const {
    using Limits = std::numeric_limits<Integer>;
    const bool fits =
        json_->is_number_unsigned()
            ? json_->get<std::uint64_t>() <= static_cast<std::uint64_t>(Limits::max()) &&
                  json_->get<Integer>() >= least
            : json_->is_number_integer() && json_->get<std::int64_t>() >= least;
    if (!fits) {
      expected("an integer from " + std::to_string(least) + " to " + std::to_string(Limits::max()));
    }
    return json_->get<Integer>();
  }

  template <typename Integer>
  [[nodiscard]] std::vector<Integer> integers() const {
    std::vector<Integer> values;
    for (const JsonNode& node : elements()) {
      values.push_back(node.integer<Integer>());
    }
    return values;
  }
  [[nodiscard]] std::vector<double> numbers() const;
  [[nodiscard]] std::vector<double> numbers(double low, double high) const;

 private:
  JsonNode(const nlohmann::json& json, std::string path, const JsonSource& source)
      : json_(&json), path_(std::move(path)), source_(&source) {}

  [[nodiscard]] JsonNode child(const std::string& key, const nlohmann::json& value) const;
  [[nodiscard]] const nlohmann::json& object() const;
  [[noreturn]] void expected(const std::string& what) const;

  const nlohmann::json* json_;
  std::string path_;
  const JsonSource* source_;
};

// Throws unless the object is of this format and version, which come before all else: another
// version may have other keys.  `otherwise`: what to do about another format; `again`: how to make
// the file anew.
void expect_format(
    const JsonNode& root,
    const std::string& format,
    std::int64_t version,
    const std::string& otherwise,
    const std::string& again);

}  // namespace paradyse
