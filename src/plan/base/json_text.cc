#include "src/plan/base/json_text.h"

#include <cstddef>
#include <stdexcept>

namespace paradyse {

namespace {

using Json = nlohmann::ordered_json;

template <typename AnyJson>
std::string line_of(const AnyJson& json) {
  try {
    return json.dump();
  } catch (const nlohmann::json::type_error&) {
    throw std::invalid_argument(
        "JSON has to be UTF-8, and a name is not: " +
        json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  }
}

// On one line, with a space after each comma and colon.
std::string on_one_line(const Json& json) {
  if (!json.is_structured()) {
    return json_line(json);
  }
  std::string text;
  for (const auto& [key, value] : json.items()) {
    text += text.empty() ? "" : ", ";
    text += (json.is_object() ? json_line(Json(key)) + ": " : "") + on_one_line(value);
  }
  return json.is_object() ? "{" + text + "}" : "[" + text + "]";
}

// `used`: columns taken before and after on the first line.
void print(const Json& json, std::size_t indent, std::size_t used, std::string& out) {
  constexpr std::size_t kColumns = 100;
  const std::string line = on_one_line(json);
  if (!json.is_structured() || json.empty() || used + line.size() <= kColumns) {
    out += line;
    return;
  }
  const std::string margin(indent + 2, ' ');
  const bool fill = json.is_array() && !json.front().is_structured();
  std::size_t column = kColumns;
  out += json.is_object() ? "{" : "[";
  const char* comma = "";
  for (const auto& [key, value] : json.items()) {
    out += comma;
    comma = ",";
    const std::size_t width = fill ? on_one_line(value).size() + 2 : 0;
    if (!fill || column + width > kColumns) {
      out += "\n" + margin;
      column = margin.size();
    } else {
      out += ' ';
    }
    column += width;
    const std::string name = json.is_object() ? json_line(Json(key)) + ": " : "";
    out += name;
    print(value, indent + 2, margin.size() + name.size() + 1, out);
  }
  out += "\n" + std::string(indent, ' ') + (json.is_object() ? "}" : "]");
}

}  // namespace

std::string json_text(const Json& json) {
  std::string text;
  print(json, 0, 0, text);
  return text + "\n";
}

std::string json_line(const nlohmann::json& json) { return line_of(json); }
std::string json_line(const Json& json) { return line_of(json); }

void no_nul(std::string_view text) {
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw nlohmann::json::parse_error::create(
        101, nul + 1, "a NUL byte: the file was damaged, or is UTF-16", nullptr);
  }
}

namespace {

template <typename Value>
Value parsed(std::string_view text) {
  no_nul(text);
  return Value::parse(text, [](int depth, auto /*event*/, const Value&) {
    if (depth > kDeepestJson) {
      throw nlohmann::json::parse_error::create(
          101, 0, "nested deeper than " + std::to_string(kDeepestJson), nullptr);
    }
    return true;
  });
}

}  // namespace

nlohmann::json json_in(std::string_view text) { return parsed<nlohmann::json>(text); }
nlohmann::ordered_json ordered_json_in(std::string_view text) {
  return parsed<nlohmann::ordered_json>(text);
}

}  // namespace paradyse
